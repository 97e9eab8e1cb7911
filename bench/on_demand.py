"""Measure on-demand mode while models are loaded and evicted: callers choose among many archives by
Zipf's law, and memory has room for some of them.

python -m bench.on_demand          200 archives, room for 60, 8 callers
python -m bench.on_demand --drift  every 2 s another model becomes the most popular one
"""

import argparse
import random
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tests.model_lifecycle.test_on_demand import call, counted, on_demand, pack
from tests.support.archives import share_for
from tests.support.harness import Server

COUNTERS = ("loads", "misses", "evictions", "thrash")
DRIFT = 2.0  # seconds
ALONE = 0.2  # length of the phase without loads, as a share of the phase with loads


@dataclass(frozen=True)
class Call:
    result: str  # "right", "wrong" or the code of an error
    milliseconds: float


def measured(server: Server, number: int) -> Call:
    began = time.monotonic()
    reply = call(server, f"m{number}")
    milliseconds = 1000 * (time.monotonic() - began)
    if reply.status_code != 200:
        return Call(reply.json()["code"], milliseconds)
    is_right = reply.json()["outputs"][0]["data"] == [2.0 * number]
    return Call("right" if is_right else "wrong", milliseconds)


def pinned(server: Server, number: int, seconds: float) -> list[Call]:
    """Call one model, which is always loaded, again and again."""
    end = time.monotonic() + seconds
    calls = []
    while time.monotonic() < end:
        calls.append(measured(server, number))
    return calls


def zipf(server: Server, archives: int, seconds: float, drift: bool) -> list[Call]:
    """Call models again and again. The n-th most popular one gets 1 / n of the calls that the most
    popular one gets."""
    began = time.monotonic()
    weights = [1 / rank for rank in range(1, archives + 1)]
    calls = []
    while (elapsed := time.monotonic() - began) < seconds:
        shift = int(elapsed / DRIFT) if drift else 0
        (rank,) = random.choices(range(archives), weights)
        calls.append(measured(server, (rank + shift) % archives))
    return calls


def line(name: str, calls: list[Call], seconds: float) -> str:
    times = sorted(each.milliseconds for each in calls if each.result == "right")
    middle, p99 = times[len(times) // 2], times[99 * len(times) // 100]
    results = ", ".join(
        f"{count} {result}" for result, count in Counter(each.result for each in calls).items()
    )
    return (
        f"{name}: {len(calls) / seconds:.1f} calls/s, p50 {middle:.0f} ms, p99 {p99:.0f} ms; "
        f"{results}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.on_demand", description=__doc__)
    parser.add_argument("--archives", type=int, default=200)
    parser.add_argument("--room", type=int, default=60, help="archives that memory has room for")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--drift", action="store_true")
    options = parser.parse_args()
    archives, seconds = options.archives, options.seconds
    with tempfile.TemporaryDirectory(prefix="on-demand-") as folder:
        for number in range(archives + 1):
            pack(Path(folder) / "models", number)
        variables = {
            "SERVE_LOAD_MODELS": f"m{archives}",
            "SERVE_MODEL_MEMORY_SHARE": str(share_for(options.room)),
        }
        with on_demand(Path(folder), **variables) as server, ThreadPoolExecutor() as threads:
            measured(server, archives)  # waits until the model is loaded
            alone = pinned(server, archives, ALONE * seconds)
            print(line("a loaded model, alone", alone, ALONE * seconds))
            churn = [
                threads.submit(zipf, server, archives, seconds, options.drift)
                for _ in range(options.callers)
            ]
            print(line("a loaded model, beside", pinned(server, archives, seconds), seconds))
            calls = list(chain.from_iterable(each.result() for each in churn))
            print(line(f"{archives} models, room for {options.room}", calls, seconds))
            counts = {name: counted(server, f"serve_on_demand_{name}_total") for name in COUNTERS}
            print(", ".join(f"{name} {count:.0f}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
