"""Where the time of a request goes: seconds by stage, kept with the thread that works on it.

    with stage("decode"):
        …

adds to the request that this thread works on; outside of one (the canary, a test) it measures nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter

STAGES = ("decode", "preprocess", "triton", "postprocess")
Timings = dict[str, float]  # stage -> the seconds that the request has spent in it

_current: ContextVar[Timings | None] = ContextVar("timings", default=None)


def begin() -> Timings:
    """Those of a new request, which are this thread's from now on."""
    timings: Timings = {}
    _current.set(timings)
    return timings


@contextmanager
def stage(name: str) -> Iterator[None]:
    """One of STAGES; a stage that is entered again goes on from where it was."""
    if (timings := _current.get()) is None:
        yield
        return
    started = perf_counter()
    try:
        yield
    finally:
        timings[name] = timings.get(name, 0.0) + perf_counter() - started


def server_timing(timings: Timings) -> str:
    """As the header Server-Timing has it (W3C), in milliseconds; "" when no stage was entered."""
    entered = ((name, timings[name]) for name in STAGES if name in timings)
    return ", ".join(f"{name};dur={1000 * seconds:.3f}" for name, seconds in entered)
