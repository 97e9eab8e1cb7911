"""One row of the settings table: how its text is read, checked, written and described."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AUTO = Path("auto")
LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class SettingsError(Exception):
    """One or more wrong values; `mistakes` has a line for each: variable, value and what is allowed."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True)
class Setting:
    """One row. The first of `variables` that is set and not empty counts; the first is the main one."""

    name: str
    variables: tuple[str, ...]
    default: Any
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    parser: Callable[[str], Any] | None = None
    formatter: Callable[[Any], str] | None = None  # the parser's way back
    form: str = ""  # what a value looks like, where its type does not say it
    secret: bool = False  # its value is never shown

    def read(self, environ: Mapping[str, str]) -> Any:
        """The value; raises ValueError that names variable, value and what is allowed."""
        for variable in self.variables:
            if text := environ.get(variable, "").strip():
                return self._parse(variable, text)
        return self.default

    def _parse(self, variable: str, text: str) -> Any:
        try:
            value = (self.parser or _PARSERS[type(self.default)])(text)
        except (ValueError, KeyError):
            value = None
        if value is None or not self._allows(value):
            shown = "…" if self.secret else repr(text)
            raise ValueError(f"{variable}={shown} is wrong: it must be {self.expected()}")
        return value

    def _allows(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        low, high = self.minimum, self.maximum
        return (low is None or value >= low) and (high is None or value <= high)

    def format(self, value: Any) -> str:
        """The text that is read as this value."""
        return (self.formatter or format_value)(value)

    def expected(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = self.form or _TYPE_NAMES[type(self.default)]
        if self.minimum is not None and self.maximum is not None:
            words += f" from {self.minimum:.12g} to {self.maximum:.12g}"
        return words


def _parse_float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value


def _parse_bool(text: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True}
    return (words | {"false": False, "0": False, "no": False, "off": False})[text.lower()]


def parse_log_level(text: str) -> str:
    """A name or a number as Python's logging has it; a number between two levels is the next one up."""
    if not text.isdecimal():
        return text.lower()
    return next((name for name, number in LOG_LEVELS.items() if int(text) <= number), text)


def parse_header_secret(text: str) -> str:
    """HEADER=VALUE, the value in characters that a header can carry."""
    if not re.fullmatch(r"[A-Za-z0-9-]+=[!-~]([ -~]*[!-~])?", text):
        raise ValueError(text)
    return text


_PARSERS: dict[type, Callable[[str], Any]] = {
    bool: _parse_bool,
    int: int,
    float: _parse_float,
    str: str,
    type(AUTO): Path,
}
_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", type(AUTO): "a path"}


def format_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)
