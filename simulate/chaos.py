"""What goes wrong in life, made on purpose and at the simulator's side: --chaos slow-disk,kill,507."""

import random
import threading
import time
from dataclasses import dataclass

KINDS = {
    "slow-disk": (2.0, "seconds by which fetching and unpacking an archive takes longer"),
    "kill": (30.0, "seconds between two kills of a container, on average"),
    "507": (0.2, "share of the loads that are answered 507 without asking the container"),
}


@dataclass(frozen=True)
class Rates:
    """0 of a kind is none of it. `seed` makes the same calls meet the same luck."""

    slow_disk: float = 0.0
    kill: float = 0.0
    refuse: float = 0.0
    seed: int | None = None


def parse_rates(text: str, seed: int | None = None) -> Rates:
    """Of `slow-disk=2,kill=30,507=0.2`, a kind without a number means its default; ValueError says what is wrong."""
    rates: dict[str, float] = {}
    for word in filter(None, text.split(",")):
        kind, _, number = word.partition("=")
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
        rates[kind] = _number(kind, number) if number else KINDS[kind][0]
    return Rates(rates.get("slow-disk", 0.0), rates.get("kill", 0.0), rates.get("507", 0.0), seed)


def _number(kind: str, text: str) -> float:
    most = 1.0 if kind == "507" else 86400.0
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= most:
        raise ValueError(f"{kind}={text}: a number from 0 to {most:g}, {KINDS[kind][1]}")
    return number


class Chaos:
    """Safe to share between threads."""

    def __init__(self, rates: Rates = Rates()) -> None:
        self.rates = rates
        self._random = random.Random(rates.seed)
        self._lock = threading.Lock()

    def disk(self) -> None:
        """Waits as long as a slow disk does."""
        time.sleep(self.rates.slow_disk)

    def refuses_load(self) -> bool:
        with self._lock:
            return self._random.random() < self.rates.refuse

    def seconds_to_next_kill(self) -> float:
        """Exponentially distributed: kills come independently of each other."""
        with self._lock:
            return self._random.expovariate(1 / self.rates.kill)

    def choose(self, number: int) -> int:
        """One of 0 … number - 1."""
        with self._lock:
            return self._random.randrange(number)
