"""Defines the errors that end a command, and shortens texts for their messages."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

BRIEF = 150  # number of characters after which brief() cuts a text
LISTED = 3  # maximum number of names that shortened() lists


class BuildError(Exception):
    """Raised if a command fails. The message says in one line what is wrong and what to do. The
    command exits with `code`."""

    code: ClassVar[int] = 1


class UsageError(BuildError):
    """Raised if the command line is invalid or does not fit the model."""

    code: ClassVar[int] = 2


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn any Exception in this context, except a BuildError, into a BuildError whose message is
    `what` and the reason. The exceptions of libraries and clients have no other common base
    class."""
    try:
        yield
    except BuildError:
        raise
    except Exception as err:
        raise BuildError(f"{what}: {first_line(err)}") from err


def brief(err: Exception) -> str:
    """Return the first line of an error, cut to BRIEF characters. Some converters put their whole
    state into an error."""
    line = first_line(err)
    return line if len(line) <= BRIEF else f"{line[:BRIEF]} …"


def shortened(names: Sequence[str]) -> str:
    """Return a text with the first LISTED names and the number of the others."""
    more = len(names) - LISTED
    listed = ", ".join(names[:LISTED])
    return f"{listed} and {more} more" if more > 0 else listed


def first_line(err: Exception) -> str:
    """Return the first line of an exception's text, or the name of its type if it has no text."""
    lines = str(err).strip().splitlines()
    return lines[0] if lines else type(err).__name__
