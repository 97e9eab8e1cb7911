"""Where the time of a request goes: seconds by stage."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

STAGES = ("decode", "preprocess", "triton", "postprocess")


class Timings(dict[str, float]):
    """Stage -> the seconds that the request has spent in it."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """One of STAGES; a stage that is entered again adds up."""
        started = perf_counter()
        try:
            yield
        finally:
            self[name] = self.get(name, 0.0) + perf_counter() - started

    def header(self) -> str:
        """The header Server-Timing (W3C), in milliseconds; "" when no stage was entered."""
        return ", ".join(f"{name};dur={1000 * self[name]:.3f}" for name in STAGES if name in self)
