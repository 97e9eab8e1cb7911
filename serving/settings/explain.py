"""Describes the settings for --help, for --print-config, and for docs/settings.md, the output of
`python -m serving.settings.explain`. Warns about unknown variables."""

import shlex
import sys
from collections.abc import Iterable, Mapping
from itertools import chain

from serving.named_value import nearest
from serving.settings.settings import SETTINGS, Settings

PREFIXES = ("SAGEMAKER_TRITON_", "SERVE_")
MASK = "********"
PAGE = """# Settings

These environment variables are read at startup. If a value is wrong, the container stops and says
what is allowed. If a row has several variables, the first one that is set counts. `./serve --help`
prints most of this table; `./serve --print-config` prints each value and its source.

| Variable | Default, then other values | Meaning |
|---|---|---|
"""


def markdown() -> str:
    """Return the text of docs/settings.md."""
    rows = []
    for row in SETTINGS:
        names = ", ".join(f"`{variable}`" for variable in row.variables)
        default = row.formatter(row.default)
        values = [f"`{default}`" if default else "none"]
        values += [choice for choice in row.choices if choice != row.default]
        if row.form:
            values.append(f"or {row.form}")
        rows.append(f"| {names} | {', '.join(values)} | {row.help} |\n")
    return PAGE + "".join(rows)


def help_text() -> str:
    """Return the part of --help that describes the settings, with two lines for each."""
    lines = []
    for row in SETTINGS:
        default = row.formatter(row.default) or "none"
        lines.append(f"  {', '.join(row.variables)}")
        lines.append(f"      {row.help} (default: {default})")
    return "\n".join(lines)


def config_text(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return a line `VARIABLE=value  # source` for each setting, with the value quoted for a shell.
    Secrets are masked. The source says "derived" if the value was computed from the machine or from
    other settings."""
    lines = []
    for row in SETTINGS:
        value = getattr(settings, row.name)
        original = row.read(environ)
        text = MASK if row.secret and value else row.formatter(value)
        variable = next((name for name in row.variables if environ.get(name, "").strip()), "")
        original_text = row.formatter(original)
        if value == original:
            source = f"variable {variable}" if variable else "default"
        elif variable:
            source = f"derived from {variable}={original_text}"
        else:
            source = f"derived from the default {original_text or 'none'}"
        quoted = shlex.quote(text) if text else ""
        lines.append(f"{row.variables[0]}={quoted}  # {source}")
    return "\n".join(lines)


def warnings_of_unknown_variables(environ: Iterable[str]) -> list[str]:
    """Return a warning for each variable in `environ` whose name begins with one of PREFIXES, but
    which is not a setting."""
    names = list(chain.from_iterable(row.variables for row in SETTINGS))
    unknown = sorted(name for name in environ if name.startswith(PREFIXES) and name not in names)
    warnings = []
    for name in unknown:
        near = nearest(name, names)
        hint = f"did you mean {near}?" if near else "docs/settings.md lists them"
        warnings.append(f"{name} is not a setting; {hint}")
    return warnings


if __name__ == "__main__":
    sys.stdout.write(markdown())
