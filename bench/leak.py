"""Loads and unloads models in a loop and reports what is left: memory, processes, files.

python -m bench.leak --models 1000
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.platform import Platform, container, end_on_sigterm, make_archive
from serving.host.process_memory import tree, used_by


@dataclass(frozen=True)
class Usage:
    """What a container uses: bytes of memory, processes, threads, open files, and files for archives and in shared
    memory."""

    memory: int
    processes: int
    threads: int
    descriptors: int
    files: int

    def __str__(self) -> str:
        return (
            f"{self.memory / 2**20:.0f} MB, {self.processes} processes, {self.threads} threads, "
            f"{self.descriptors} open files, {self.files} files"
        )


def usage(pid: int, run_dir: Path) -> Usage:
    """The usage of a `serve` and its run folder."""
    processes = list(tree(pid))
    return Usage(
        memory=used_by(pid),
        processes=len(processes),
        threads=sum(_count(each, "task") for each in processes),
        descriptors=sum(_count(each, "fd") for each in processes),
        files=sum(1 for _ in (run_dir / "models").rglob("*")) + len(set().union(*map(_shared, processes))),
    )


def _shared(pid: int) -> set[str]:
    """The shared-memory files that a process maps."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.split(maxsplit=5)[5] for line in lines if " /dev/shm/" in line}


def _count(pid: int, kind: str) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/{kind}").iterdir())
    except OSError:
        return 0


def cycle(platform: Platform, numbers: Sequence[int], at_once: int) -> list[tuple[float, float]]:
    """Loads, calls and unloads each model; (seconds of each load, seconds of each unload)."""
    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(lambda number: _one(platform, number), numbers))


def _one(platform: Platform, number: int) -> tuple[float, float]:
    begun = time.monotonic()
    if platform.load(number) != 200:
        raise RuntimeError(f"model {number} is not loaded")
    loaded = time.monotonic()
    if platform.invoke(number, 2.0).json()["outputs"][0]["data"] != [2.0 * number]:
        raise RuntimeError(f"model {number} gives a wrong answer")
    called = time.monotonic()
    platform.unload(number)
    return loaded - begun, time.monotonic() - called


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.leak", description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=1000, help="loads and unloads in all")
    parser.add_argument("--archives", type=int, default=50, help="different ones, more than --at-once")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--report", type=int, default=100, help="loads between two lines")
    options = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="leak-") as name:
        folder = Path(name)
        for number in range(options.archives):
            make_archive(folder / "models", number)
        with container(folder) as (url, pid):
            platform = Platform(url, folder / "models")
            for done in range(0, options.models, options.report):
                count = min(options.report, options.models - done)
                times = cycle(platform, [n % options.archives for n in range(done, done + count)], options.at_once)
                loads, unloads = zip(*times, strict=True)
                print(
                    f"{done + count:5d} loads: median {statistics.median(loads):.2f} s, unload "
                    f"{statistics.median(unloads):.2f} s; left: {usage(pid, folder / 'run')}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
