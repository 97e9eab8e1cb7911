"""The errors with which a command fails."""

from typing import ClassVar

BRIEF = 150  # characters


class BuildError(Exception):
    """The build failed. The message says what is wrong and what to do, in one line; the command
    exits with `code`."""

    code: ClassVar[int] = 1


class UsageError(BuildError):
    """The command line is wrong."""

    code: ClassVar[int] = 2


def brief(err: Exception) -> str:
    """Return the first line of an error, without a converter's long state."""
    line = first_line(err)
    return line if len(line) <= BRIEF else f"{line[:BRIEF]} …"


def first_line(err: Exception) -> str:
    """Return the first line of another library's error, or its type if it has no text, for messages
    of one line."""
    return (str(err).strip().splitlines() or [type(err).__name__])[0]
