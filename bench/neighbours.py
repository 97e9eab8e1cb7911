"""Measure how long another caller's small picture takes, first alone and then while hostile
requests keep arriving (docs/security.md).

python -m bench.neighbours                 all rows of tests/endpoint/hostile_requests.py
python -m bench.neighbours --rows picture  the rows whose names contain one of the words
"""

import argparse
import multiprocessing
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import requests

from bench.calls import repeat
from tests.endpoint.hostile_models import make_models
from tests.endpoint.hostile_requests import ROWS
from tests.endpoint.test_hostile_requests import SHARE, SMALL
from tests.support.harness import PATIENCE, Server, wait_until

# mark a row if its requests raise the neighbour's p99 by more than this factor
MOST = 3.0


def attack(name: str, url: str, begin: Event, end: Event) -> None:
    """Send the row's requests until `end` is set. Call this in a separate process, whose low
    priority leaves the processors to the server, as if the caller were on another machine."""
    os.nice(19)
    row = ROWS[name]
    send = row.sent(url, PATIENCE)

    def keep_sending(_: int) -> None:
        while not end.is_set():
            send()

    begin.set()
    with ThreadPoolExecutor(row.callers) as callers:
        list(callers.map(keep_sending, range(row.callers)))


def p99(url: str, seconds: float) -> float:
    """Classify a small picture again and again for `seconds`. Return the 99th percentile of the
    calls' times, in milliseconds. The time of a failed call counts as PATIENCE."""
    with requests.Session() as session:
        session.headers["Content-Type"] = "image/png"

        def classify(_: float) -> str:
            reply = session.post(f"{url}/invocations?model_name=resnet", data=SMALL)
            return "right" if reply.ok else "failed"

        calls = repeat(seconds, classify)
    failed = 1000 * PATIENCE
    times = [each.milliseconds if each.result == "right" else failed for each in calls]
    return float(np.percentile(times, 99))


def p99_beside(name: str, server: Server, seconds: float) -> float:
    """Return the neighbour's p99 while the row's requests are sent."""
    begin = multiprocessing.Event()
    end = multiprocessing.Event()
    attacker = multiprocessing.Process(target=attack, args=(name, server.url, begin, end))
    attacker.start()
    begin.wait(PATIENCE)
    try:
        return p99(server.url, seconds)
    finally:
        end.set()
        attacker.join()
        wait_until(lambda: server.in_flight() == 0, "the server has nothing more to do")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.neighbours", description=__doc__)
    parser.add_argument("--rows", nargs="+", default=[""], help="words in the names of the rows")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each row")
    options = parser.parse_args()
    names = [name for name in ROWS if any(word in name for word in options.rows)]
    with tempfile.TemporaryDirectory(prefix="neighbours-") as folder:
        make_models(Path(folder) / "models")
        variables = {"SERVE_REQUEST_MEMORY_SHARE": str(SHARE), "SERVE_LOG_LEVEL": "error"}
        server = Server(Path(folder), Path(folder) / "models", **variables).wait_ready()
        try:
            p99(server.url, 2.0)
            for name in names:
                alone = p99(server.url, options.seconds)
                taken = p99_beside(name, server, options.seconds)
                mark = " !" if taken > MOST * alone else ""
                print(
                    f"{taken / alone:5.1f} ×  {alone:4.0f} ms alone, {taken:6.0f} ms beside "
                    f"{name}{mark}",
                    flush=True,
                )
        finally:
            server.stop()


if __name__ == "__main__":
    main()
