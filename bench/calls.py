"""Calls a server again and again, and measures each call."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """Records one call. Its result is "right", or says what is wrong."""

    result: str
    milliseconds: float


def repeat(seconds: float, call: Callable[[float], str]) -> list[Call]:
    """Call again and again for `seconds`. `call` gets the number of seconds that have passed, and
    returns the result. Return all calls."""
    calls = []
    began = now = time.monotonic()
    while now - began < seconds:
        result = call(now - began)
        ended = time.monotonic()
        calls.append(Call(result, 1000 * (ended - now)))
        now = ended
    return calls
