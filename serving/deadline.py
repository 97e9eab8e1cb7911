"""Until when a request's caller waits. What nobody waits for any more is not worked on."""

import math
from dataclasses import dataclass
from time import monotonic, time

from serving.errors import TooLate

HANDED_OVER = "X-Request-Start"  # nginx's time in seconds since 1970; nginx replaces what a caller sends


@dataclass(frozen=True)
class Deadline:
    """A moment on time.monotonic()'s clock."""

    end: float = math.inf

    @classmethod
    def after(cls, seconds: float, handed_over: float | None = None) -> "Deadline":
        """So many seconds after nginx handed the request over: what it waited in gunicorn's queue counts."""
        waited = 0.0 if handed_over is None else max(0.0, time() - handed_over)
        return cls(monotonic() + seconds - waited)

    def left(self, most: float = math.inf) -> float:
        """The seconds that are left, at most so many; raises TooLate when none are."""
        seconds = min(most, self.end - monotonic())
        if seconds <= 0:
            raise TooLate
        return seconds


NEVER = Deadline()
