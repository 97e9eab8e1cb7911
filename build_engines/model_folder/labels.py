"""labels.txt: one label a line."""

from collections.abc import Sequence
from pathlib import Path

from build_engines.errors import UsageError


def read_lines(file: Path) -> list[str]:
    """The lines that are not empty; OSError or UnicodeDecodeError when it is no text file."""
    return [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def write_labels(target: Path, labels: Sequence[str], file: Path | None) -> bool:
    """Writes the labels of `file`, else `labels`; whether there are any. UsageError when the file cannot be read."""
    if file:
        try:
            labels = read_lines(file)
        except (OSError, UnicodeDecodeError) as err:
            raise UsageError(f"--labels {file}: {err}") from err
    if labels:
        target.write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    return bool(labels)
