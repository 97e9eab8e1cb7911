"""What a command fails with."""

from typing import ClassVar


class BuildError(Exception):
    """What is wrong and what to do, in one line for the caller; the command ends with `code`."""

    code: ClassVar[int] = 1


class UsageError(BuildError):
    """The command makes no sense as it was given."""

    code: ClassVar[int] = 2


def first_line(err: Exception) -> str:
    """The first line of what another library raised, else its type: enough for a message of one line."""
    return (str(err).strip().splitlines() or [type(err).__name__])[0]
