"""Runs code of a test as if it worked for a request."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from serving.budget import NEVER, Deadline, allow_time


@contextmanager
def within(deadline: Deadline, seconds: float = math.inf, sent: int = 0) -> Iterator[None]:
    """Set what allow_time sets, for the code in this context."""
    allow_time(deadline, seconds, sent)
    try:
        yield
    finally:
        allow_time(NEVER)
