"""The settings told to people: each value and where it came from, and variables that nothing reads."""

import shlex
from collections.abc import Iterable, Mapping

from serving.named_value import nearest
from serving.settings.handed_on import HANDED_ON, TO_CLOUDWATCH
from serving.settings.setting import Setting
from serving.settings.table import ROWS, TABLE, Settings

PREFIXES = ("SAGEMAKER_TRITON_", "SERVE_")
MASK = "********"


def print_config(settings: Settings, environ: Mapping[str, str]) -> str:
    """A line `VARIABLE=value  # where from` for each setting, as a shell would read it; secrets are masked."""
    own = [_line(row, getattr(settings, row.name), environ) for row in TABLE]
    return "\n".join([*own, *(_line(row, row.read(environ), environ) for row in (*HANDED_ON, *TO_CLOUDWATCH))])


def unknown_variables(environ: Iterable[str]) -> list[str]:
    """A warning for each variable that is named as ours are, and is none of them."""
    known = [name for row in ROWS for name in row.variables]
    strangers = sorted(name for name in environ if name.startswith(PREFIXES) and name not in known)
    return [_stranger(name, known) for name in strangers]


def _stranger(name: str, known: list[str]) -> str:
    near = nearest(name, known)
    return f"{name} is not a setting" + (f"; did you mean {near}?" if near else "; docs/settings.md lists them all")


def _line(row: Setting, value: object, environ: Mapping[str, str]) -> str:
    text = MASK if row.secret and value else row.format(value)
    return f"{row.variables[0]}={shlex.quote(text) if text else ''}  # {_source(row, value, environ)}"


def _source(row: Setting, value: object, environ: Mapping[str, str]) -> str:
    """The variable, or default; derived when the value follows from the machine or from other settings."""
    variable = next((name for name in row.variables if environ.get(name, "").strip()), "")
    if value == row.read(environ):
        return f"variable {variable}" if variable else "default"
    asked = row.format(row.read(environ))
    return f"derived, from {variable}={asked}" if variable else f"derived, for the default is {asked or 'none'}"
