"""Measures loads, unloads and calls while many models are loaded, and calls during loads.

python -m bench.many --models 1 100 1000
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.leak import usage
from bench.platform import Platform, container, end_on_sigterm, make_archive

ROUNDS = 5


def seconds(action: Callable[[], object]) -> float:
    begun = time.monotonic()
    action()
    return time.monotonic() - begun


def calls_during_loads(platform: Platform, numbers: range) -> list[float]:
    """Seconds of each call to model 0 while the others are loaded at the same time."""
    waits: list[float] = []
    done = threading.Event()

    def call() -> None:
        while not done.is_set():
            waits.append(seconds(lambda: platform.invoke(0, 1.0)))

    caller = threading.Thread(target=call)
    caller.start()
    with ThreadPoolExecutor(len(numbers)) as threads:
        list(threads.map(platform.load, numbers))
    done.set()
    caller.join()
    return sorted(waits)


def measure(platform: Platform, extra: int) -> str:
    """Figures with the models that are loaded now; loads and unloads the models from `extra` on."""
    loads: list[float] = []
    unloads: list[float] = []
    for _ in range(ROUNDS):
        loads.append(seconds(lambda: platform.load(extra)))
        unloads.append(seconds(lambda: platform.unload(extra)))
    quiet = sorted(seconds(lambda: platform.invoke(0, 1.0)) for _ in range(200))
    waits = calls_during_loads(platform, range(extra, extra + 4))
    for number in range(extra, extra + 4):
        platform.unload(number)
    return (
        f"load {statistics.median(loads):.2f} s, unload {statistics.median(unloads):.2f} s; call: median "
        f"{1000 * quiet[100]:.1f} ms, 99 % {1000 * quiet[198]:.1f} ms; during 4 loads: median "
        f"{1000 * waits[len(waits) // 2]:.1f} ms, 99 % {1000 * waits[int(0.99 * len(waits))]:.1f} ms, "
        f"most {1000 * waits[-1]:.0f} ms; list {seconds(platform.loaded):.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.many", description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--at-once", type=int, default=4)
    options = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="many-") as name:
        folder = Path(name)
        for number in range(max(options.models) + 4):
            make_archive(folder / "models", number)
        with container(folder) as (url, pid):
            platform = Platform(url, folder / "models")
            loaded = 0
            for count in sorted(options.models):
                begun = time.monotonic()
                with ThreadPoolExecutor(options.at_once) as threads:
                    statuses = list(threads.map(platform.load, range(loaded, count)))
                took, loaded = time.monotonic() - begun, count
                print(
                    f"{count} models ({statuses.count(200)} more in {took:.0f} s; {usage(pid, folder / 'run')}): "
                    f"{measure(platform, count)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
