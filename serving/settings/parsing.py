"""How the values that are no plain number, word or path are read from text and written back."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_SWITCH = {"1": "true", "yes": "true", "on": "true", "0": "false", "no": "false", "off": "false"}


def format_value(value: Any) -> str:
    """A number, a word, a path or true and false; as short as it can be read back."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def parse_paths(text: str) -> tuple[Path, ...]:
    """PATH or PATH:PATH:…"""
    if not all(parts := [part.strip() for part in text.split(":")]):
        raise ValueError(text)
    return tuple(map(Path, parts))


def format_paths(paths: Iterable[Path]) -> str:
    return ":".join(map(str, paths))


def parse_names(text: str) -> tuple[str, ...]:
    """NAME or NAME,NAME,…"""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_port_range(text: str) -> tuple[int, ...]:
    """LOW-HIGH, both inclusive."""
    found = re.fullmatch(r"(\d{1,5})\s*-\s*(\d{1,5})", text)
    low, high = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= low <= high <= 65535:
        raise ValueError(text)
    return low, high


def format_port_range(allowed: Iterable[int]) -> str:
    return "-".join(map(str, allowed))


def parse_switch(text: str) -> str:
    """true, false or auto."""
    return _SWITCH.get(text.lower(), text.lower())


def parse_verbosity(text: str) -> int:
    """A level, or true for 1 and false for 0."""
    words = {"true": 1, "false": 0}
    return words[text.lower()] if text.lower() in words else int(text)


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


def parse_arguments(text: str) -> tuple[str, ...]:
    """Words as a shell splits them; ValueError for a quotation that does not end."""
    return tuple(shlex.split(text))
