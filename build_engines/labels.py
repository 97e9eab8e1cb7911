"""Reads and writes files with one label per line."""

from collections.abc import Sequence
from pathlib import Path

from build_engines.errors import UsageError


def read_lines(file: Path) -> list[str]:
    """Return the lines that are not blank, without the spaces around them. Raise OSError or
    UnicodeDecodeError if the file cannot be read as UTF-8."""
    lines = [line.strip() for line in file.read_text(encoding="utf-8").split("\n")]
    return [line for line in lines if line]


def write_labels(target: Path, labels: Sequence[str], file: Path | None) -> bool:
    """Write the labels of `file`, or `labels` if `file` is None, to `target`. Return whether
    there are any; if not, write nothing. Raise UsageError if `file` is not UTF-8 or a label
    contains a line break."""
    if file:
        try:
            labels = read_lines(file)
        except UnicodeDecodeError as err:
            raise UsageError(f"--labels {file}: {err}") from err
    for label in labels:
        if "\n" in label or "\r" in label:
            raise UsageError(
                f"the name {label!r} has a line end, and {target.name} has a name on each "
                "line: rename it"
            )
    if labels:
        target.write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    return bool(labels)
