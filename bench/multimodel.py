"""Multi-model mode, ours and Triton's own: archives called by a Zipf distribution, loads, calls during loads."""

import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench import zipf
from bench.load import percentile
from bench.many import calls_during_loads, seconds
from bench.peer_table import Peer
from bench.peers.context import Context, Start
from bench.peers.triton import start_multi_model
from bench.platform import Platform, make_archive
from bench.repository import ROOT
from bench.servers import Server

CALLERS, EXTRA, LOADS, QUIET_CALLS = 4, 4, 3, 200
NAMES = ("ours", "sagemaker")


@dataclass
class MultiModel:
    """`calls_per_second` includes the loads for the calls; a load and an unload are in seconds; the 99th percentiles of
    calls, alone and during loads, are in milliseconds; `per_model` is bytes per loaded model."""

    calls_per_second: float
    wrong: int
    load: float
    unload: float
    quiet_p99: float
    loading_p99: float
    per_model: float


def multi_model(archives: int, calls: int, scratch: Path) -> dict[str, MultiModel]:
    """The figures of both, measured one after the other."""
    root = scratch / "archives"
    for number in range(archives + EXTRA):
        make_archive(root, number)
    return {name: _measured(name, root, archives, calls, scratch) for name in NAMES}


def _measured(name: str, root: Path, archives: int, calls: int, scratch: Path) -> MultiModel:
    with _running(name, root, scratch) as server:
        platform = Platform(f"http://127.0.0.1:{server.port}", root)
        empty = server.memory()
        called = zipf.numbers(archives, calls, 1.1)
        begun = time.monotonic()
        outcome = zipf.drive(platform, called, CALLERS)
        took = time.monotonic() - begun
        per_model = (server.memory() - empty) / len(set(called))
        platform.load(0)
        loads, unloads = zip(*(_load_and_unload(platform, archives + n) for n in range(LOADS)), strict=True)
        quiet = [seconds(lambda: platform.invoke(0, 1.0)) for _ in range(QUIET_CALLS)]
        during = calls_during_loads(platform, range(archives, archives + EXTRA))
        return MultiModel(
            calls_per_second=calls / took,
            wrong=len(outcome.wrong),
            load=statistics.median(loads),
            unload=statistics.median(unloads),
            quiet_p99=1000 * percentile(quiet, 0.99),
            loading_p99=1000 * percentile(during, 0.99),
            per_model=per_model,
        )


def _load_and_unload(platform: Platform, number: int) -> tuple[float, float]:
    return seconds(lambda: platform.load(number)), seconds(lambda: platform.unload(number))


@contextmanager
def _running(name: str, root: Path, scratch: Path) -> Iterator[Server]:
    start = {"ours": _ours, "sagemaker": start_multi_model}[name]
    peer = Peer(
        name=name, title=name, settings="", start=start, ready="/ping", request=lambda _: None, predictions=lambda _: []
    )
    server = Server(peer, root, (), scratch)
    try:
        yield server.wait([])
    finally:
        server.end()


def _ours(context: Context) -> Start:
    variables = {
        "PORT": str(context.port),
        "SERVE_HOST": "127.0.0.1",
        "SERVE_RUN_DIR": str(context.scratch / "run"),
        "SAGEMAKER_MULTI_MODEL": "true",
        "SERVE_MODELS_ROOT": str(context.repository),
        "SERVE_LOG_LEVEL": "warning",
    }
    return Start((str(context.python), str(ROOT / "serve")), variables)


def memory_by_models(name: str, counts: Sequence[int], scratch: Path) -> dict[int, float]:
    """Megabytes of all processes for each number of loaded archives."""
    root = scratch / "archives"
    for number in range(max(counts)):
        make_archive(root, number)
    found: dict[int, float] = {}
    with _running(name, root, scratch) as server:
        platform = Platform(f"http://127.0.0.1:{server.port}", root)
        for before, count in pairwise((0, *counts)):
            with ThreadPoolExecutor(CALLERS) as threads:
                list(threads.map(platform.load, range(before, count)))
            found[count] = server.memory() / 2**20
    return found
