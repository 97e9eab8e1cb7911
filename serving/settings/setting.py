"""One setting: how its variables are read, and how its value is written back."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.named_value import WORDS, NamedValue

LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class SettingsError(Exception):
    """Some values are wrong; `mistakes` has a line for each: variable, value and what is
    allowed."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


def format_value(value: Any) -> str:
    """Return the text that is read as this value."""
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


@dataclass(frozen=True, kw_only=True)
class Setting(NamedValue):
    """The first of `variables` that is set and not empty counts; the first is the main one."""

    variables: tuple[str, ...]
    formatter: Callable[[Any], str] = format_value  # the parser's way back
    secret: bool = False  # its value is never shown

    def read(self, environ: Mapping[str, str]) -> Any:
        """Return the value. Raise ValueError that names variable, value and what is allowed."""
        for variable in self.variables:
            if text := environ.get(variable, "").strip():
                try:
                    return self.parse(text)
                except ValueError:
                    shown = "…" if self.secret else repr(text)
                    raise ValueError(
                        f"{variable}={shown} is wrong: it must be {self.expected()}"
                    ) from None
        return self.default


def parse_paths(text: str) -> tuple[Path, ...]:
    """Read PATH or PATH:PATH:…"""
    if not all(parts := [part.strip() for part in text.split(":")]):
        raise ValueError(text)
    return tuple(map(Path, parts))


def parse_origins(text: str) -> tuple[str, ...]:
    """Read SCHEME://HOST, with a port if it is not the scheme's own, or several with commas between
    them."""
    origins = tuple(part.strip().lower() for part in text.split(","))
    for origin in origins:
        if not re.fullmatch(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", origin):
            raise ValueError(text)
    return origins


def parse_port_range(text: str) -> tuple[int, ...]:
    """Read LOW-HIGH, both inclusive."""
    low, high = map(int, text.split("-"))
    if not 1 <= low <= high <= 65535:
        raise ValueError(text)
    return low, high


def parse_switch(text: str) -> str:
    """Read a word in any case, or one of bool's words."""
    return str(WORDS.get(text.lower(), text)).lower()


def parse_log_level(text: str) -> str:
    """Read a name or a number of Python's logging; a number between two levels is the next one
    up."""
    if not text.isdecimal():
        return text.lower()
    return next((name for name, number in LOG_LEVELS.items() if int(text) <= number), text)


def parse_header_secret(text: str) -> str:
    """Read HEADER=VALUE, the value in characters that a header can carry."""
    if not re.fullmatch(r"[A-Za-z0-9-]+=[!-~]([ -~]*[!-~])?", text):
        raise ValueError(text)
    return text
