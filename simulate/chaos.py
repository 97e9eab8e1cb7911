"""Failures that the simulator makes on purpose: --chaos slow-disk,kill,507."""

import random
import threading
import time
from dataclasses import dataclass

KINDS = {
    "slow-disk": (2.0, "extra seconds to fetch and unpack an archive"),
    "kill": (30.0, "seconds between two kills of a container, on average"),
    "507": (0.2, "share of the loads that get 507 without asking the container"),
}


@dataclass(frozen=True)
class Rates:
    """How much of each kind; 0 turns it off. With the same `seed`, the same calls have the same luck."""

    slow_disk: float = 0.0
    kill: float = 0.0
    refuse: float = 0.0
    seed: int | None = None


def parse_rates(text: str, seed: int | None = None) -> Rates:
    """Rates from text such as `slow-disk=2,kill=30,507=0.2`; a kind without a number gets its default. ValueError says
    what is wrong."""
    rates: dict[str, float] = {}
    for word in filter(None, text.split(",")):
        kind, _, number = word.partition("=")
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not one of {', '.join(KINDS)}")
        rates[kind] = _number(kind, number) if number else KINDS[kind][0]
    return Rates(rates.get("slow-disk", 0.0), rates.get("kill", 0.0), rates.get("507", 0.0), seed)


def _number(kind: str, text: str) -> float:
    most = 1.0 if kind == "507" else 86400.0
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= most:
        raise ValueError(f"{kind}={text}: it must be a number from 0 to {most:g}, {KINDS[kind][1]}")
    return number


class Chaos:
    """Decides when something fails. Safe to share between threads."""

    def __init__(self, rates: Rates = Rates()) -> None:
        self.rates = rates
        self._random = random.Random(rates.seed)
        self._lock = threading.Lock()

    def wait_for_disk(self) -> None:
        """Waits as long as a slow disk takes."""
        time.sleep(self.rates.slow_disk)

    def refuses_load(self) -> bool:
        with self._lock:
            return self._random.random() < self.rates.refuse

    def seconds_to_next_kill(self) -> float:
        """Exponentially distributed, so that kills are independent of each other."""
        with self._lock:
            return self._random.expovariate(1 / self.rates.kill)

    def choose(self, number: int) -> int:
        """A random number from 0 to number - 1."""
        with self._lock:
            return self._random.randrange(number)
