"""Defines NamedValue, which describes a setting or a client's parameter: its name, its default, and
its bounds or choices."""

import contextlib
import math
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

MOST_NAMES = 1_000  # items in one list, e.g. the classes to keep; ImageNet has 1,000 classes
INT64 = range(-(2**63), 2**63)
LONGEST_NUMBER = 19  # digits of 2**63
ALIKE = 0.75  # the minimum difflib ratio at which a name is considered a typo of another


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return the one of the `choices` that is most similar to `name`, or "" if none is similar."""
    import difflib  # imported here because it is slow to import and rarely needed

    matches = difflib.get_close_matches(name, list(choices), n=1, cutoff=ALIKE)
    return matches[0] if matches else ""


def unknown(kind: str, name: str, choices: Iterable[str]) -> str:
    """Return the error message for an unknown `name`. The message lists all `choices`, and suggests
    the most similar one if any is similar."""
    name = name[:100]
    names = sorted(choices)
    near = nearest(name, names)
    suggestion = f"did you mean '{near}'? " if near else ""
    known = ", ".join(names) or "none"
    return f"unknown {kind} '{name}'; {suggestion}known: {known}"


_QUOTED = reprlib.Repr()
_QUOTED.maxstring = _QUOTED.maxother = 100


def quoted(value: Any) -> str:
    """Return a caller's value as text for an error message, shortened if it is long, has many items
    or is deeply nested."""
    return _QUOTED.repr(value)


def whole_number(text: str) -> int | None:
    """Convert a text of 1 to LONGEST_NUMBER digits to a number. Return None for any other text."""
    is_number = text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER
    return int(text) if is_number else None


class Names(tuple[str, ...]):
    """A list of strings, as the value of a NamedValue. Its type tells it from a list of numbers."""

    __slots__ = ()


@dataclass(frozen=True)
class NamedValue:
    """Describes a value. The value is parsed by `parser` or, if that is None, by the parser for the
    type of `default`. It is then checked against the bounds and choices.

    The types are bool, int, float, str, Path, tuple (numbers, written "0.5,0.5,0.5" or as a JSON
    list) and Names (strings, written "cat,dog" or as a JSON list, in which whole numbers count as
    strings). `form` says in error messages what the value must look like.
    """

    name: str
    default: Any
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] = ()
    parser: Callable[[str], Any] | None = None
    form: str = ""

    def __post_init__(self) -> None:
        """Convert `choices` to a tuple. Raise ValueError if a field has a wrong type. If there is
        no `parser`, also check that `parse` accepts the default."""
        for field, field_type in _FIELD_TYPES.items():
            value = getattr(self, field)
            if not isinstance(value, field_type):
                label = f"{type(self).__name__} {quoted(self.name)}"
                order = ", ".join(_FIELD_TYPES)
                raise ValueError(f"{label}: {field}={quoted(value)} is wrong; the order is {order}")
        object.__setattr__(self, "choices", tuple(self.choices or ()))
        if self.parser is None:
            self.parse(self.default)

    def parse(self, value: Any) -> Any:
        """Parse `value`. If it is invalid, raise a ValueError that says what is allowed."""
        with contextlib.suppress(TypeError, ValueError, KeyError, OverflowError):
            parser = self.parser or _TYPES[type(self.default)].parser
            parsed = parser(value)
            parts = parsed if isinstance(parsed, tuple) else (parsed,)
            if all(map(self._allows, parts)):
                return parsed
        raise ValueError(f"{quoted(value)} is not {self.expected()}")

    def _allows(self, part: Any) -> bool:
        """Return whether a value, or one item of a list, is within the bounds and choices."""
        is_high_enough = self.minimum is None or part >= self.minimum
        is_low_enough = self.maximum is None or part <= self.maximum
        is_choice = not self.choices or part in self.choices
        return is_high_enough and is_low_enough and is_choice

    def expected(self) -> str:
        """Return a description of the valid values, for error messages."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        form = self.form or _TYPES[type(self.default)].form
        if self.minimum is None and self.maximum is None:
            return form
        if self.minimum is None:
            return f"{form} at most {self.maximum:.12g}"
        if self.maximum is None:
            return f"{form} at least {self.minimum:.12g}"
        return f"{form} from {self.minimum:.12g} to {self.maximum:.12g}"

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of valid values."""
        bounds = {
            "minimum": self.minimum,
            "maximum": self.maximum,
            "enum": list(self.choices) or None,
        }
        item: dict[str, Any] = {"type": _TYPES[type(self.default)].json_type}
        item |= {name: bound for name, bound in bounds.items() if bound is not None}
        return {"type": "array", "items": item} if isinstance(self.default, tuple) else item


BOOLEANS = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}


def _parse_bool(value: Any) -> bool:
    if not isinstance(value, bool | str):  # in JSON, 0 and 1 are numbers, not booleans
        raise ValueError(value)
    return BOOLEANS[str(value).strip().lower()]


def _parse_int(value: Any) -> int:
    has_fraction = isinstance(value, float) and not value.is_integer()
    if isinstance(value, bool) or has_fraction:
        raise ValueError(value)
    number = int(value)
    if number not in INT64:  # the libraries that receive the number accept only 64 bits
        raise ValueError(value)
    return number


def _parse_float(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(value)
    return number


def _parse_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _parse_numbers(value: Any) -> tuple[float, ...]:
    parts = [part for part in _split(value) if part != ""]
    return tuple(map(_parse_float, parts))


def _parse_names(value: Any) -> Names:
    names = []
    for part in _split(value):
        text = str(part) if type(part) is int else _parse_str(part)
        name = text.strip()
        if name:
            names.append(name)
    return Names(names)


def _split(value: Any) -> list[Any]:
    """Split a text at its commas, or return the items of a list. Raise ValueError if there are more
    than MOST_NAMES, or if `value` is neither a text nor a list."""
    parts = value
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",", MOST_NAMES)]  # at most one too many
    if not isinstance(parts, list | tuple) or len(parts) > MOST_NAMES:
        raise ValueError(type(value))
    return list(parts)


_NUMBER = int | float | None
# Maps the fields of a NamedValue, in their order, to their types. The optional fields `parser` and
# `form` are not checked.
_FIELD_TYPES: dict[str, Any] = {
    "name": str,
    "default": bool | int | float | str | Path | tuple,
    "help": str,
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "choices": tuple | list | None,
}


class _Type(NamedTuple):
    """Describes a type of values. `form` has the same meaning as in NamedValue. `json_type` is the
    type in JSON Schema; for a list, that of an item."""

    parser: Callable[[Any], Any]
    form: str
    json_type: str | list[str]


# keyed by the type of a NamedValue's default
_TYPES: dict[type, _Type] = {
    bool: _Type(_parse_bool, "true or false", "boolean"),
    int: _Type(_parse_int, "a whole number", "integer"),
    float: _Type(_parse_float, "a number", "number"),
    str: _Type(_parse_str, "a string", "string"),
    tuple: _Type(_parse_numbers, f"a list of at most {MOST_NAMES} numbers", "number"),
    Names: _Type(_parse_names, f"a list of at most {MOST_NAMES} strings", ["string", "integer"]),
    type(Path()): _Type(Path, "a path", "string"),
}
