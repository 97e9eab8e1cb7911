"""A named value with a default, and bounds or choices: how it is read, checked and described; and names that nobody
knows. Standard library only.

The settings (serving/settings) and the parameters of clients (clients/base.py) are made of it.
"""

import math
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INT64 = range(-(2**63), 2**63)
ALIKE = 0.75  # of difflib: names that are less alike are no typing mistake


def nearest(name: str, known: Iterable[str]) -> str:
    """That of the known names which was probably meant; "" where none is like it."""
    import difflib  # takes time, and few names are wrong

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=ALIKE)), "")


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The text for a name that is none of the known ones: "unknown `what` 'name'", and which there are."""
    names = sorted(known)
    near = nearest(name[:100], names)
    meant = f"; did you mean '{near}'?" if near else ""
    return f"unknown {what} '{name[:100]}'{meant}{'' if meant else ';'} known: {', '.join(names) or 'none'}"


_QUOTED = reprlib.Repr()
_QUOTED.maxstring = _QUOTED.maxother = 100


def quoted(value: Any) -> str:
    """A caller's value in an error message, cut where it is long, has many items or is nested deeply."""
    return _QUOTED.repr(value)


class Names(tuple[str, ...]):
    """The type of a NamedValue that lists strings."""

    __slots__ = ()


@dataclass(frozen=True)
class NamedValue:
    """A value is read by `parser`, or by the type of the default, then checked.

    Types: bool, int, float, str, Path, tuple (of numbers, written "0.5,0.5,0.5" or as a JSON list) and Names (of
    strings, written "cat,dog" or as a JSON list, where whole numbers count as strings). `form` says what a value looks
    like where its type does not.
    """

    name: str
    default: Any
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    parser: Callable[[str], Any] | None = None
    form: str = ""

    def parse(self, value: Any) -> Any:
        """The checked value; raises ValueError that says what is allowed."""
        try:
            parsed = (self.parser or _TYPES[type(self.default)][0])(value)
        except (TypeError, ValueError, KeyError, OverflowError):
            raise self._mistake(value) from None
        if not all(map(self._allows, parsed if isinstance(parsed, tuple) else (parsed,))):
            raise self._mistake(value)
        return parsed

    def expected(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = self.form or _TYPES[type(self.default)][1]
        low, high = ("" if bound is None else f"{bound:.12g}" for bound in (self.minimum, self.maximum))
        if low and high:
            return f"{words} from {low} to {high}"
        return words + (f" at least {low}" if low else "") + (f" at most {high}" if high else "")

    def schema(self) -> dict[str, Any]:
        """What a value must be, as JSON Schema."""
        bounds = {"minimum": self.minimum, "maximum": self.maximum}
        found = {name: value for name, value in bounds.items() if value is not None}
        of_one: dict[str, Any] = found | ({"enum": list(self.choices)} if self.choices else {})
        kind = type(self.default)
        if issubclass(kind, tuple):
            return {"type": "array", "items": {"type": ["string", "integer"] if kind is Names else "number"} | of_one}
        return {"type": _JSON_TYPES.get(kind, "string")} | of_one

    def _allows(self, value: Any) -> bool:
        low, high = self.minimum, self.maximum
        chosen = not self.choices or value in self.choices
        return chosen and (low is None or value >= low) and (high is None or value <= high)

    def _mistake(self, value: Any) -> ValueError:
        return ValueError(f"{quoted(value)} is not {self.expected()}")


_JSON_TYPES = {bool: "boolean", int: "integer", float: "number"}
_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def _parse_bool(value: Any) -> bool:
    if not isinstance(value, bool | str):  # 0 and 1 are numbers in JSON
        raise ValueError(value)
    return _WORDS[str(value).strip().lower()]


def _parse_int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    if (number := int(value)) not in INT64:  # no library takes a longer one
        raise ValueError(value)
    return number


def _parse_float(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(parsed := float(value)):
        raise ValueError(value)
    return parsed


def _parse_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _parse_numbers(value: Any) -> tuple[float, ...]:
    parts = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    return tuple(map(_parse_float, parts))


def _parse_names(value: Any) -> Names:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise TypeError(value)
    names = (str(part) if type(part) is int else _parse_str(part).strip() for part in parts)
    return Names(name for name in names if name)


_TYPES: dict[type, tuple[Callable[[Any], Any], str]] = {
    bool: (_parse_bool, "true or false"),
    int: (_parse_int, "a whole number"),
    float: (_parse_float, "a number"),
    str: (_parse_str, "a string"),
    tuple: (_parse_numbers, "a list of numbers"),
    Names: (_parse_names, "a list of strings"),
    type(Path()): (Path, "a path"),
}
