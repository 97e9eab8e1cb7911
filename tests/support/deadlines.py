"""Runs a test's own code as if it worked for a request."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from serving.budget import NEVER, Deadline, allow_time


@contextmanager
def within(deadline: Deadline, seconds: float = math.inf) -> Iterator[None]:
    """Set the deadline of this thread's request, and the `seconds` of which it gets a part."""
    allow_time(deadline, seconds)
    try:
        yield
    finally:
        allow_time(NEVER)
