"""The limit: one engine (BENCH_ENGINE) in one process, the same preprocessing, no server.

Reads one JSON order per line and answers with one JSON line. `best` searches the setting (threads of a run, runs at
once, spinning or not) in short trials; its result is kept for that model and number of callers.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from bench.load import Sample, closed_sample
from bench.sessions import ONNX_RUNTIME, SHORT, SPINNING, Setting, processors
from bench.subject import Subject

ENGINE = os.environ.get("BENCH_ENGINE") or ONNX_RUNTIME
TRIAL_SECONDS = 0.7


@cache
def subject(model: str, setting: Setting) -> Subject:
    """Created at its first use, because every setting takes memory."""
    return Subject(Path(os.environ["BENCH_REPOSITORY"]) / model, setting)


def closed_loop(model: Subject, bodies: Sequence[bytes], callers: int, at_once: int, seconds: float) -> Sample:
    """As many threads as run at once take the callers in the order in which they ask; each asks again at once. (With a
    thread for each caller and a semaphore, the one that ran takes it again, and the others wait a whole round.)"""
    waiting, latencies = SimpleQueue[float](), list[float]()  # the moments at which callers have asked
    model.predict(bodies)
    begun = time.monotonic()
    for _ in range(callers):
        waiting.put(begun)

    def work() -> None:
        while (asked := waiting.get()) < begun + seconds:
            model.predict(bodies)
            latencies.append((now := time.monotonic()) - asked)
            waiting.put(now)

    threads = [threading.Thread(target=work) for _ in range(min(at_once, callers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return closed_sample(latencies, callers, time.monotonic() - begun)


@cache
def best(model: str, bodies: tuple[bytes, ...], callers: int) -> tuple[float, Setting, int]:
    """(requests per second, setting, runs at once) with the highest throughput."""
    cores = processors()
    spinning = SPINNING if ENGINE == ONNX_RUNTIME else [SHORT]
    settings = product(sorted({1, cores}), spinning, range(1, min(callers, cores) + 1))

    def tried(threads: int, spinning: str, at_once: int) -> tuple[float, Setting, int]:
        setting = Setting(ENGINE, threads, spinning)
        return closed_loop(subject(model, setting), bodies, callers, at_once, TRIAL_SECONDS).rate, setting, at_once

    return max((tried(*each) for each in settings), key=lambda found: found[0])


def answer(order: dict[str, Any]) -> dict[str, Any]:
    """{"search": true} gives the best setting and its rate, {"measure": seconds} a Sample with it, {"predict": true}
    the predictions, {"decode": true} the seconds to decode one instance at full size."""
    bodies = tuple(bytes.fromhex(text) for text in order["bodies"])
    if order.get("predict"):
        return {"predictions": subject(order["model"], Setting(ENGINE)).predict(bodies)}
    if order.get("decode"):
        return {"seconds": min(_decode(bodies[0]) for _ in range(5))}
    rate, setting, at_once = best(order["model"], bodies, order["callers"])
    if order.get("search"):
        return {"rate": rate, "setting": f"{setting}, runs at once: {at_once}"}
    model = subject(order["model"], setting)
    return {"sample": asdict(closed_loop(model, bodies, order["callers"], at_once, order["measure"]))}


def _decode(body: bytes) -> float:
    from serving.codecs import IMAGE, Limits

    begun = time.monotonic()
    IMAGE.from_bytes(body, Limits())
    return time.monotonic() - begun


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
