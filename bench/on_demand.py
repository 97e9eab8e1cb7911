"""Measure on-demand mode while models are loaded and evicted: callers choose among many archives by
Zipf's law, and memory has room for some of them.

python -m bench.on_demand              200 archives, room for 60, 8 callers
python -m bench.on_demand --drift      every 2 s another model becomes the most popular one
python -m bench.on_demand --simulator  a multi-model endpoint, whose models the simulator loads
python -m bench.on_demand --usage      also shows whether memory, threads or files grow
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import requests

from bench.soak import SAMPLE_SECONDS, WARM, table
from tests.model_lifecycle.test_on_demand import TARGET, call, counted, on_demand, pack
from tests.support.archives import Usage, share_for, usage
from tests.support.harness import PATIENCE, Server, free_port, tensor, wait_until

Ask = Callable[[int], requests.Response]  # calls the model with a number
COUNTERS = ("loads", "misses", "evictions", "thrash")
DRIFT = 2.0  # seconds
ALONE = 0.2  # length of the phase without loads, as a share of the phase with loads


@dataclass(frozen=True)
class Call:
    result: str  # "right", "wrong", or the code or status of an error
    milliseconds: float


@contextmanager
def running(folder: Path, **variables: str) -> Iterator[tuple[Ask, Server]]:
    with on_demand(folder, **variables) as server:
        yield lambda number: call(server, f"m{number}"), server
        counts = {name: counted(server, f"serve_on_demand_{name}_total") for name in COUNTERS}
        print(", ".join(f"{name} {count:.0f}" for name, count in counts.items()))


@contextmanager
def simulated(folder: Path, **variables: str) -> Iterator[tuple[Ask, None]]:
    """Simulate a multi-model endpoint with the same archives and the same memory."""
    port, log = free_port(), folder / "simulator.log"
    command = [sys.executable, "-m", "simulate", f"--models={folder / 'models'}", f"--port={port}"]
    command += [f"--env={name}={value}" for name, value in variables.items()]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output)
    body = {"inputs": [tensor([2.0])]}

    def ask(number: int) -> requests.Response:
        url = f"http://127.0.0.1:{port}/endpoints/any/invocations"
        headers = {TARGET: f"m{number}.tar.gz"}
        return requests.post(url, json=body, headers=headers, timeout=PATIENCE)

    try:
        wait_until(lambda: "in service: http" in log.read_text(), "the simulator is in service")
        yield ask, None
    finally:
        process.terminate()
        process.wait()
    summary = log.read_text().partition("stopping …")[2].strip().splitlines()
    print(*[line for line in summary if not line.startswith("container |")], sep="\n")


def measured(ask: Ask, number: int) -> Call:
    began = time.monotonic()
    reply = ask(number)
    milliseconds = 1000 * (time.monotonic() - began)
    if reply.status_code != 200:
        return Call(reply.json().get("code", str(reply.status_code)), milliseconds)
    is_right = reply.json()["outputs"][0]["data"] == [2.0 * number]
    return Call("right" if is_right else "wrong", milliseconds)


def pinned(ask: Ask, number: int, seconds: float) -> list[Call]:
    """Call one model again and again, so that it stays loaded."""
    end = time.monotonic() + seconds
    calls = []
    while time.monotonic() < end:
        calls.append(measured(ask, number))
    return calls


def zipf(ask: Ask, archives: int, seconds: float, drift: bool) -> list[Call]:
    """Call models again and again. The n-th most popular one gets 1 / n of the calls that the most
    popular one gets."""
    began = time.monotonic()
    weights = [1 / rank for rank in range(1, archives + 1)]
    calls = []
    while (elapsed := time.monotonic() - began) < seconds:
        shift = int(elapsed / DRIFT) if drift else 0
        (rank,) = random.choices(range(archives), weights)
        calls.append(measured(ask, (rank + shift) % archives))
    return calls


def samples(server: Server, seconds: float) -> list[tuple[float, Usage]]:
    """Return what the server uses, and after how many minutes, without the first WARM of the
    time."""
    began = time.monotonic()
    found = []
    while (elapsed := time.monotonic() - began) < seconds:
        if elapsed > WARM * seconds:
            found.append((elapsed / 60, usage(server.process.pid, server.run_dir)))
        time.sleep(min(SAMPLE_SECONDS, WARM * seconds))
    return found


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
    parser.add_argument("--simulator", action="store_true")
    parser.add_argument("--usage", action="store_true", help="not with --simulator")
    options = parser.parse_args()
    archives, seconds = options.archives, options.seconds
    with tempfile.TemporaryDirectory(prefix="on-demand-") as folder:
        for number in range(archives + 1):
            pack(Path(folder) / "models", number)
        start = simulated if options.simulator else running
        memory = {"SERVE_MODEL_MEMORY_SHARE": str(share_for(options.room))}
        with (
            start(Path(folder), **memory) as (ask, server),
            ThreadPoolExecutor(options.callers + 1) as threads,
        ):
            measured(ask, archives)  # loads the model, so the calls below find it loaded
            alone = pinned(ask, archives, ALONE * seconds)
            print(line("a loaded model, alone", alone, ALONE * seconds))
            churn = [
                threads.submit(zipf, ask, archives, seconds, options.drift)
                for _ in range(options.callers)
            ]
            if options.usage and server:
                used = threads.submit(samples, server, seconds)
            print(line("a loaded model, beside", pinned(ask, archives, seconds), seconds))
            calls = list(chain.from_iterable(each.result() for each in churn))
            print(line(f"{archives} models, room for {options.room}", calls, seconds))
            if options.usage and server:
                print(table(used.result()))


if __name__ == "__main__":
    main()
