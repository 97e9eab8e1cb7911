"""Defines the errors with which a command fails, and shortens texts for their messages."""

from collections.abc import Sequence
from typing import ClassVar

BRIEF = 150  # characters
LISTED = 3  # names


class BuildError(Exception):
    """The build failed. The message says what is wrong and what to do, in one line; the command
    exits with `code`."""

    code: ClassVar[int] = 1


class UsageError(BuildError):
    """The command line is wrong."""

    code: ClassVar[int] = 2


def brief(err: Exception) -> str:
    """Return the first line of an error, shortened, because a converter's error may print its whole
    state."""
    line = first_line(err)
    return line if len(line) <= BRIEF else f"{line[:BRIEF]} …"


def shortened(names: Sequence[str]) -> str:
    """Return the first LISTED names, and how many more there are."""
    more = len(names) - LISTED
    listed = ", ".join(names[:LISTED])
    return f"{listed} and {more} more" if more > 0 else listed


def first_line(err: Exception) -> str:
    """Return the first line of another library's error, or its type if it has no text, for messages
    of one line."""
    lines = str(err).strip().splitlines()
    return lines[0] if lines else type(err).__name__
