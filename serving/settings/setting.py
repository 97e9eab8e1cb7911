"""Defines Setting, a value that is read from environment variables, and the parsers for such
values."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.named_value import BOOLEANS, NamedValue

BUCKET = re.compile(r"(s3|gs|az)://[\w.-]+(/[^?#:]*)?")
LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class SettingsError(Exception):
    """Raised if settings are invalid. `mistakes` contains one line per mistake, with the variable,
    its value and what is allowed."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


def format_value(value: Any) -> str:
    """Format a value as the text of a variable from which the same value is read."""
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    return str(value)


@dataclass(frozen=True, kw_only=True)
class Setting(NamedValue):
    """Describes a value that is read from environment variables. The first of `variables` that is
    set and not empty counts. variables[0] is the setting's main name, shown by --print-config."""

    variables: tuple[str, ...]
    formatter: Callable[[Any], str] = format_value  # the inverse of `parse`
    secret: bool = False  # if true, the value is never shown

    def read(self, environ: Mapping[str, str]) -> Any:
        """Return the setting's value, or the default if no variable is set. If the value is
        invalid, raise a ValueError that contains the variable, its value unless it is secret, and
        what is allowed."""
        for variable in self.variables:
            text = environ.get(variable, "").strip()
            if not text:
                continue
            try:
                return self.parse(text)
            except ValueError:
                shown = "…" if self.secret else repr(text)
                raise ValueError(
                    f"{variable}={shown} is wrong: it must be {self.expected()}"
                ) from None
        return self.default


def parse_paths(text: str) -> tuple[Path, ...]:
    """Parse a path, several paths separated by colons, or the URL of one bucket. The URL becomes a
    Path, from which `bucket_url` recreates it without repeated or final slashes. Raise ValueError
    if a path is empty or a URL is wrong."""
    if BUCKET.fullmatch(text):
        return (Path(text),)
    parts = [part.strip() for part in text.split(":")]
    if "://" in text or not all(parts):
        raise ValueError(text)
    return tuple(map(Path, parts))


def bucket_url(path: Path) -> str:
    """Return the URL of the bucket that was parsed as `path`, or "" if `path` is a folder."""
    url = str(path).replace(":/", "://", 1)
    return url if BUCKET.fullmatch(url) else ""


def format_paths(paths: tuple[Path, ...]) -> str:
    """Return the text from which parse_paths reads these paths."""
    return ":".join(bucket_url(path) or str(path) for path in paths)


def parse_origins(text: str) -> tuple[str, ...]:
    """Parse origins, SCHEME://HOST[:PORT], separated by commas. Raise ValueError if one is
    wrong."""
    origins = tuple(part.strip().lower() for part in text.split(","))
    for origin in origins:
        if not re.fullmatch(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", origin):
            raise ValueError(text)
    return origins


def parse_port_range(text: str) -> tuple[int, ...]:
    """Parse a range of ports, LOW-HIGH, to (low, high). Both ports belong to the range.
    Raise ValueError if the text is anything else."""
    low, high = map(int, text.split("-"))
    if not 1 <= low <= high <= 65535:
        raise ValueError(text)
    return low, high


def parse_switch(text: str) -> str:
    """Return "true" or "false" for a word that means a boolean, such as yes or 0. Return any other
    text in lower case: `choices` decides whether it is allowed."""
    word = BOOLEANS.get(text.lower(), text)  # a boolean or the text itself
    return str(word).lower()


def parse_log_level(text: str) -> str:
    """Return the name of a Python logging level, given its name in any case or its number. A number
    between two levels counts as the higher level. Return any other text in lower case: `choices`
    rejects it."""
    if not text.isdecimal():
        return text.lower()
    for name, number in LOG_LEVELS.items():
        if int(text) <= number:
            return name
    return text


def parse_header_secret(text: str) -> str:
    """Return the text unchanged. Raise ValueError unless it is HEADER=VALUE with a value that may
    be sent in a header."""
    if not re.fullmatch(r"[A-Za-z0-9-]+=[!-~]([ -~]*[!-~])?", text):
        raise ValueError(text)
    return text
