"""Measure on-demand mode while models are loaded and evicted: callers choose among many archives by
Zipf's law, and memory has room for some of them.

python -m bench.on_demand              200 archives, room for 60, 8 callers
python -m bench.on_demand --drift      every 2 s another model becomes the most popular one
python -m bench.on_demand --simulator  a multi-model endpoint, whose models the simulator loads; its
                                       hits and misses are not counted separately
python -m bench.on_demand --usage      also shows whether memory, threads or files grow
"""

import argparse
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import requests

from bench.calls import Call, repeat
from bench.soak import SAMPLE_SECONDS, WARM, table_of
from tests.model_lifecycle.test_on_demand import TARGET, call, counted, on_demand, pack
from tests.simulate.command import Command
from tests.support.archives import Usage, share_for, usage
from tests.support.harness import PATIENCE, Server, tensor

CallModel = Callable[[int], requests.Response]  # calls the model that has the given number
COUNTERS = ("loads", "hits", "misses", "evictions", "thrash")
DRIFT = 2.0  # with --drift, seconds until another model becomes the most popular one
WITHOUT_LOADS = 0.2  # length of the phase without loads, as a share of the phase with them
RIGHT = "right"
LOADED = "right after a load"


@contextmanager
def running(folder: Path, **variables: str) -> Iterator[tuple[CallModel, Server]]:
    """Run a server in on-demand mode. Print its counters at the end."""
    with on_demand(folder, **variables) as server:
        yield lambda number: call(server, f"m{number}"), server
        counts = {name: counted(server, f"serve_on_demand_{name}_total") for name in COUNTERS}
        print(", ".join(f"{name} {count:.0f}" for name, count in counts.items()))


@contextmanager
def simulated(folder: Path, **variables: str) -> Iterator[tuple[CallModel, None]]:
    """Simulate a multi-model endpoint with the same archives and the same memory."""
    options = [f"--env={name}={value}" for name, value in variables.items()]
    simulator = Command(folder, f"--models={folder / 'models'}", *options)
    url = f"{simulator.wait_ready()}/endpoints/any/invocations"
    body = {"inputs": [tensor([2.0])]}

    def call_model(number: int) -> requests.Response:
        headers = {TARGET: f"m{number}.tar.gz"}
        return requests.post(url, json=body, headers=headers, timeout=PATIENCE)

    try:
        yield call_model, None
    finally:
        simulator.stop(signal.SIGTERM)
    summary = simulator.output().partition("stopping …")[2].strip().splitlines()
    print(*[line for line in summary if not line.startswith("container |")], sep="\n")


def result(reply: requests.Response, number: int) -> str:
    """Return what a reply of the model `number` is: RIGHT, LOADED, "wrong", or the code or status
    of an error."""
    if reply.status_code != 200:
        return str(reply.json().get("code", reply.status_code))
    if reply.json()["outputs"][0]["data"] != [2.0 * number]:
        return "wrong"
    return LOADED if "load;" in reply.headers.get("Server-Timing", "") else RIGHT


def zipf(call_model: CallModel, archives: int, seconds: float, drift: bool) -> list[Call]:
    """Call models again and again for `seconds`. The n-th most popular model gets 1 / n of the
    calls that the most popular one gets. Return the calls."""
    weights = [1 / rank for rank in range(1, archives + 1)]

    def call_one(elapsed: float) -> str:
        shift = int(elapsed / DRIFT) if drift else 0
        (rank,) = random.choices(range(archives), weights)
        number = (rank + shift) % archives
        return result(call_model(number), number)

    return repeat(seconds, call_one)


def samples(server: Server, seconds: float) -> list[tuple[float, Usage]]:
    """Return (minutes passed, the server's resource usage), measured at regular times. The first
    part of the time (WARM) is left out."""
    began = time.monotonic()
    measured = []
    while (elapsed := time.monotonic() - began) < seconds:
        if elapsed > WARM * seconds:
            measured.append((elapsed / 60, usage(server.process.pid, server.run_dir)))
        time.sleep(min(SAMPLE_SECONDS, WARM * seconds))
    return measured


def print_times(name: str, calls: list[Call], seconds: float) -> None:
    counts = Counter(each.result for each in calls)
    results = ", ".join(f"{count} {result}" for result, count in counts.items())
    print(f"{name}: {len(calls) / seconds:.1f} calls/s; {results}")
    for kind, wanted in (("hits", RIGHT), ("misses", LOADED)):
        times = [each.milliseconds for each in calls if each.result == wanted]
        if times:
            p50, p99 = np.percentile(times, (50, 99))
            print(f"  {kind}: p50 {p50:.0f} ms, p99 {p99:.0f} ms")


def measure(call_model: CallModel, server: Server | None, options: argparse.Namespace) -> None:
    """Load half as many models as memory has room for, and call only these. Then call all models,
    so that models are loaded and evicted. Print how long the calls take."""
    few = options.room // 2
    seconds = options.seconds
    # one thread more than callers, which takes the samples
    with ThreadPoolExecutor(options.callers + 1) as threads:

        def call_concurrently(archives: int, duration: float) -> list[Call]:
            callers = [
                threads.submit(zipf, call_model, archives, duration, options.drift)
                for _ in range(options.callers)
            ]
            return list(chain.from_iterable(caller.result() for caller in callers))

        list(threads.map(call_model, range(few)))
        calls = call_concurrently(few, WITHOUT_LOADS * seconds)
        print_times(f"{few} models, all loaded", calls, WITHOUT_LOADS * seconds)
        if server and options.usage:
            used = threads.submit(samples, server, seconds)
        calls = call_concurrently(options.archives, seconds)
        print_times(f"{options.archives} models, room for {options.room}", calls, seconds)
    if server and options.usage:
        print(table_of(used.result()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.on_demand", description=__doc__)
    parser.add_argument("--archives", type=int, default=200)
    parser.add_argument("--room", type=int, default=60, help="archives that memory has room for")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--drift", action="store_true")
    parser.add_argument("--simulator", action="store_true")
    parser.add_argument("--usage", action="store_true", help="not with --simulator")
    options = parser.parse_args()
    start = simulated if options.simulator else running
    memory = {"SERVE_MODEL_MEMORY_SHARE": str(share_for(options.room))}
    with tempfile.TemporaryDirectory(prefix="on-demand-") as folder:
        for number in range(options.archives):
            pack(Path(folder) / "models", number)
        with start(Path(folder), **memory) as (call_model, server):
            measure(call_model, server, options)


if __name__ == "__main__":
    main()
