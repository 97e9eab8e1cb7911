"""Many archives behind a memory limit, called by a Zipf distribution; a 507 evicts the least recently used.

python -m bench.zipf --archives 200 --room 60 --requests 1000
"""

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.platform import Platform, container, end_on_sigterm, make_archive
from serving.host.machine import memory_limit

PER_MODEL = 19 * 2**20  # what one of these models takes, measured
TRITON = 60 * 2**20  # what Triton takes, and what a load is reckoned with


@dataclass
class Outcome:
    """The seconds of each call, and the wrong answers."""

    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def share_for(models: int) -> float:
    """The SERVE_MODEL_MEMORY_SHARE with room for about that many models."""
    return (TRITON + models * PER_MODEL) / memory_limit()


def numbers(archives: int, requests: int, exponent: float, seed: int = 1) -> list[int]:
    """The model of each request: the k-th most popular has a probability proportional to k ** -exponent."""
    generator = random.Random(seed)
    ranks = list(range(1, archives + 1))
    generator.shuffle(ranks)
    weights = [rank**-exponent for rank in ranks]
    return generator.choices(range(archives), weights, k=requests)


def drive(platform: Platform, called: list[int], callers: int) -> Outcome:
    """Calls the models in this order, by `callers` concurrent callers."""
    outcome = Outcome()
    lock = threading.Lock()
    with ThreadPoolExecutor(callers) as threads:
        list(threads.map(lambda number: _note(outcome, lock, platform, number), called))
    return outcome


def _note(outcome: Outcome, lock: threading.Lock, platform: Platform, number: int) -> None:
    begun = time.monotonic()
    reply = platform.call(number, 3.0)
    right = reply.status_code == 200 and reply.json()["outputs"][0]["data"] == [3.0 * number]
    with lock:
        outcome.seconds.append(time.monotonic() - begun)
        if not right:
            outcome.wrong.append(f"model {number}: {reply.status_code} {reply.text}")


def watch(platform: Platform, outcome: Callable[[], Outcome]) -> Outcome:
    """Prints the outcome."""
    done = outcome()
    seconds = sorted(done.seconds)
    print(
        f"{len(seconds)} calls, {len(done.wrong)} wrong; {platform.loads} loads, {platform.unloads} evictions, "
        f"{platform.refused} answers of 507, {len(platform.loaded())} loaded at the end; seconds: median "
        f"{statistics.median(seconds):.3f}, 90 % {seconds[int(0.9 * len(seconds))]:.2f}, most {seconds[-1]:.1f}"
    )
    for wrong in done.wrong[:10]:
        print(wrong)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.zipf", description=__doc__.splitlines()[0])
    parser.add_argument("--archives", type=int, default=200)
    parser.add_argument("--room", type=int, default=60, help="models that fit into the memory")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--callers", type=int, default=4)
    parser.add_argument("--exponent", type=float, default=1.1)
    options = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="zipf-") as name:
        folder = Path(name)
        for number in range(options.archives):
            make_archive(folder / "models", number)
        with container(folder, SERVE_MODEL_MEMORY_SHARE=str(share_for(options.room))) as (url, _):
            platform = Platform(url, folder / "models")
            called = numbers(options.archives, options.requests, options.exponent)
            begun = time.monotonic()
            watch(platform, lambda: drive(platform, called, options.callers))
            print(f"{time.monotonic() - begun:.0f} s in all")


if __name__ == "__main__":
    main()
