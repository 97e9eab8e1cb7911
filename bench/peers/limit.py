"""The limit: ONNX Runtime in one process, the same preprocessing, no server.

Reads one JSON order per line and answers with one JSON line. `best` first searches the thread setting (threads per run,
concurrent runs, spinning or not) in short trials and keeps the fastest for that model and number of callers.
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
from typing import Any

from bench.load import Sample, closed_sample
from bench.subject import SHORT, SPINNING, Subject

TRIAL_SECONDS = 0.7


@cache
def subject(model: str, threads: int, spinning: str) -> Subject:
    """Created at its first use, because every setting takes memory."""
    return Subject(Path(os.environ["BENCH_REPOSITORY"]) / model, threads, spinning)


def closed_loop(model: Subject, bodies: Sequence[bytes], callers: int, at_once: int, seconds: float) -> Sample:
    """`callers` threads, of which at most `at_once` work at the same time."""
    slots, lock, latencies = threading.Semaphore(at_once), threading.Lock(), list[float]()
    model.predict(bodies)
    begun = time.monotonic()

    def call() -> None:
        while (started := time.monotonic()) < begun + seconds:
            with slots:
                model.predict(bodies)
            with lock:
                latencies.append(time.monotonic() - started)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return closed_sample(latencies, callers, time.monotonic() - begun)


@cache
def best(model: str, bodies: tuple[bytes, ...], callers: int) -> tuple[int, int, str]:
    """(threads per run, concurrent runs, spinning) with the highest throughput."""
    cores = len(os.sched_getaffinity(0))
    settings = product(sorted({1, cores}), range(1, min(callers, cores) + 1), SPINNING)

    def rate(setting: tuple[int, int, str]) -> float:
        threads, at_once, spinning = setting
        return closed_loop(subject(model, threads, spinning), bodies, callers, at_once, TRIAL_SECONDS).rate

    return max(settings, key=rate)


def answer(order: dict[str, Any]) -> dict[str, Any]:
    """{"measure": seconds} gives a Sample and the setting, {"predict": true} the predictions, {"decode": true} the
    seconds to decode one instance at full size."""
    bodies = tuple(bytes.fromhex(text) for text in order["bodies"])
    if order.get("predict"):
        return {"predictions": subject(order["model"], 0, SHORT).predict(bodies)}
    if order.get("decode"):
        return {"seconds": min(_decode(bodies[0]) for _ in range(5))}
    threads, at_once, spinning = best(order["model"], bodies, order["callers"])
    found = closed_loop(subject(order["model"], threads, spinning), bodies, order["callers"], at_once, order["measure"])
    words = f"{at_once} at once, {threads} threads, {spinning}"
    return {"sample": asdict(found), "setting": words}


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
