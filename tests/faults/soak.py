"""`python -m tests.faults.soak --minutes 60`: an even load at 70 % of the most that the machine can, with a load or an
unload a minute. Does anything grow?"""

import argparse
import itertools
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import requests

from tests.support.archives import Loader, make_archive, usage
from tests.support.harness import Server

SHARE = 0.7
ARCHIVES, LOADED = 8, 4
CALLERS = 4
WARM = 0.1  # of the time, which the slopes leave out
SAMPLE_SECONDS = 5.0


@dataclass
class Steady:
    """Callers that ask so many times a second, together; `rate` 0: as often as they can."""

    loader: Loader
    rate: float = 0.0
    verdicts: Counter[str] = field(default_factory=Counter)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self, seconds: float) -> float:
        """The answers per second."""
        threads = [threading.Thread(target=self._call, args=(time.monotonic(),)) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        self._stop.wait(seconds)
        self._stop.set()
        for thread in threads:
            thread.join()
        return sum(self.verdicts.values()) / seconds

    def _call(self, begun: float) -> None:
        while not self._stop.is_set():
            number = next(self._numbers)
            if self.rate:
                self._stop.wait(max(0.0, begun + number / self.rate - time.monotonic()))
            self.verdicts[self._verdict(number % LOADED + 1, float(number % 1000))] += 1

    def _verdict(self, model: int, x: float) -> str:
        try:
            reply = self.loader.invoke(model, x)
            if reply.status_code != 200:
                return f"{reply.status_code} {reply.json()['code']}"
            return "right" if reply.json()["outputs"][0]["data"] == [model * x] else "wrong"
        except requests.RequestException as err:
            return type(err).__name__


@dataclass(frozen=True)
class Sample:
    minutes: float
    memory: float  # MB
    descriptors: int
    shared: float  # MB in /dev/shm


def soak(minutes: float) -> str:
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        for number in range(1, ARCHIVES + 1):
            make_archive(folder / "models", number)
        own = {"SAGEMAKER_MULTI_MODEL": "true", "SERVE_LOG_LEVEL": "warning"}
        server = Server(folder, folder / "models", **own).wait_ready()
        try:
            loader = Loader(server.url, folder / "models")
            for number in range(1, ARCHIVES):
                loader.load(number)
            most = Steady(loader).run(10)
            return _soak(loader, server.process.pid, server.run_dir, minutes, most)
        finally:
            server.stop()


def _soak(loader: Loader, pid: int, run_dir: Path, minutes: float, most: float) -> str:
    load = Steady(loader, SHARE * most)
    thread = threading.Thread(target=load.run, args=(60 * minutes,))
    thread.start()
    samples = list(_samples(loader, pid, run_dir, thread))
    thread.join()
    kept = [sample for sample in samples if sample.minutes >= WARM * minutes]
    return _describe(load, kept, minutes, most)


def _samples(loader: Loader, pid: int, run_dir: Path, running: threading.Thread) -> Iterator[Sample]:
    """Loads and unloads the archives that nobody calls, in turn, one a minute. Each sample has the same loaded."""
    begun, changes = time.monotonic(), 0
    while running.is_alive():
        running.join(SAMPLE_SECONDS)
        passed = (time.monotonic() - begun) / 60
        if passed > changes + 1:
            changes += 1
            (loader.load if changes % 2 else loader.unload)(ARCHIVES)
        elif changes % 2 == 0 and running.is_alive():
            found = usage(pid, run_dir)
            yield Sample(passed, found.memory / 2**20, found.descriptors, found.shared / 2**20)


def _describe(load: Steady, samples: list[Sample], minutes: float, most: float) -> str:
    seen = ", ".join(f"{count} × {verdict}" for verdict, count in load.verdicts.most_common())
    lines = [
        f"{minutes:g} minutes at {SHARE:.0%} of {most:.0f} answers per second, {LOADED} archives called and one more "
        f"loaded or unloaded every minute: {seen}. Without the first {WARM:.0%}:",
        "",
        "| | at the beginning | at the end | slope per hour |",
        "|---|---|---|---|",
    ]
    for what, unit in (("memory", "MB"), ("descriptors", ""), ("shared", "MB")):
        values = [float(getattr(sample, what)) for sample in samples]
        slope = statistics.linear_regression([sample.minutes / 60 for sample in samples], values).slope
        named = "memory in /dev/shm" if what == "shared" else what
        lines.append(f"| {named} | {values[0]:.1f} {unit} | {values[-1]:.1f} {unit} | {slope:+.1f} {unit} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    print(soak(parser.parse_args().minutes))
