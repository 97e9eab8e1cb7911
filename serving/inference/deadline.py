"""Until when a request's caller waits. What nobody waits for any more is not worked on.

nginx gives a request up SERVE_REQUEST_TIMEOUT after it has handed it to gunicorn, and says when that was: the time
that has passed in gunicorn's queue is missing from what is left for the work. Kept with the thread that works on it;
outside of such a request (the canary, a load, a stream, a test) nothing ends.
"""

import math
from contextvars import ContextVar
from time import monotonic, time

from serving.errors import TooLate

HANDED_OVER = "X-Request-Start"  # nginx's time in seconds since 1970; nobody else's value gets through nginx

_end: ContextVar[float] = ContextVar("end", default=math.inf)


def begin(handed_over: float | None, seconds: float) -> None:
    """That of a new request, which is this thread's from now on: so many seconds after nginx's time, None for never.
    Raises TooLate when it has passed."""
    waited = 0.0 if handed_over is None else max(0.0, time() - handed_over)
    _end.set(math.inf if handed_over is None else monotonic() + seconds - waited)
    left(seconds)


def left(most: float) -> float:
    """The seconds that are left, at most so many; raises TooLate when none are."""
    seconds = min(most, _end.get() - monotonic())
    if seconds <= 0:
        raise TooLate
    return seconds
