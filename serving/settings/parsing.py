"""How the settings that are no plain number, word or path are written, both ways."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

_SWITCH = {"true": "true", "1": "true", "yes": "true", "on": "true", "auto": "auto"}
_SWITCH |= {"false": "false", "0": "false", "no": "false", "off": "false"}


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
    return _SWITCH[text.lower()]


def parse_verbosity(text: str) -> int:
    """A level, or true for 1 and false for 0."""
    words = {"true": 1, "false": 0}
    return words[text.lower()] if text.lower() in words else int(text)


def parse_token(text: str) -> str:
    """Letters and digits, which need no quotation anywhere."""
    if not re.fullmatch("[A-Za-z0-9]+", text):
        raise ValueError(text)
    return text


def parse_arguments(text: str) -> tuple[str, ...]:
    """Words as a shell splits them; ValueError for a quotation that does not end."""
    return tuple(shlex.split(text))


def bracketed(host: str) -> str:
    """An address as it stands before a port: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host
