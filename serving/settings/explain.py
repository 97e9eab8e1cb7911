"""The settings explained to people: docs/settings.md, --help, --print-config, and variables that nothing reads.

python -m serving.settings.explain > docs/settings.md
"""

import shlex
import sys
from collections.abc import Iterable, Mapping

from serving.named_value import nearest
from serving.settings.setting import Setting
from serving.settings.table import TABLE, Settings

PREFIXES = ("SAGEMAKER_TRITON_", "SERVE_")
MASK = "********"
PAGE = """# Settings

Environment variables, read once; a wrong value stops the start with a message that names it. Of several variables in a
row the first that is set counts. `./serve --help` prints this table, `./serve --print-config` each value and where it
came from.

| Variable | Default | Allowed | Meaning |
|---|---|---|---|
"""


def markdown() -> str:
    """Return docs/settings.md."""
    rows = []
    for row in TABLE:
        names, default = ", ".join(f"`{variable}`" for variable in row.variables), row.formatter(row.default)
        rows.append(f"| {names} | {f'`{default}`' if default else 'none'} | {row.expected()} | {row.help} |\n")
    return PAGE + "".join(rows)


def help_text() -> str:
    """Return two lines for each setting."""
    return "\n".join(f"  {', '.join(row.variables)}\n      {row.help} (default: {row.default})" for row in TABLE)


def print_config(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return a line `VARIABLE=value  # where from` for each setting, as a shell would read it. Secrets are masked."""
    return "\n".join(_line(row, getattr(settings, row.name), environ) for row in TABLE)


def unknown_variables(environ: Iterable[str]) -> list[str]:
    """Return a warning for each variable that is named as ours are, and is none of them."""
    known = [name for row in TABLE for name in row.variables]
    unknown = sorted(name for name in environ if name.startswith(PREFIXES) and name not in known)
    meant = {name: nearest(name, known) for name in unknown}
    return [
        f"{name} is not a setting" + (f"; did you mean {near}?" if near else "; docs/settings.md lists them all")
        for name, near in meant.items()
    ]


def _line(row: Setting, value: object, environ: Mapping[str, str]) -> str:
    text = MASK if row.secret and value else row.formatter(value)
    return f"{row.variables[0]}={shlex.quote(text) if text else ''}  # {_source(row, value, environ)}"


def _source(row: Setting, value: object, environ: Mapping[str, str]) -> str:
    """Return the variable, or default; derived if the value follows from the machine or from other settings."""
    variable = next((name for name in row.variables if environ.get(name, "").strip()), "")
    if value == row.read(environ):
        return f"variable {variable}" if variable else "default"
    asked = row.formatter(row.read(environ))
    return f"derived from {variable}={asked}" if variable else f"derived from the default {asked or 'none'}"


if __name__ == "__main__":
    sys.stdout.write(markdown())
