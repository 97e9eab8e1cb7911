"""What GET /metrics says of the requests, in Prometheus' text format, all of gunicorn's workers summed.

Where the environment names a folder in PROMETHEUS_MULTIPROC_DIR (as `serve` does) every worker keeps its numbers
in files there, which prometheus_client opens after the fork, at the first use in a new process; without one (a
test, one process) they are kept in memory. A worker that has ended leaves its counts to those of all that have.
"""

import fcntl
import json
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
NGINX_WRITING = "X-Nginx-Writing"  # what nginx tells of itself with a scrape: requests in work, that one included
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
OTHER = "(other)"
MOST_MODELS = 100  # more (model, version) pairs than these share OTHER: a series is memory and time of every scrape
REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
STAGE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
SIZE_BUCKETS = tuple(float(4**power) for power in range(3, 16))  # 64 bytes … 1 GB


@dataclass(frozen=True)
class Finished:
    """A request that was answered; `model` is "" when it named none that is served, sizes are in bytes,
    `sent` is None when it was not known before it was sent."""

    model: str
    version: str
    status: int
    seconds: float
    received: int
    sent: int | None
    stages: Mapping[str, float] = field(default_factory=dict)


class Metrics:
    """Counts; safe to share between threads. `status_file` is the supervisor's, None where nothing supervises."""

    def __init__(self, status_file: Path | None = None) -> None:
        self._status_file = status_file
        self._registry = registry = CollectorRegistry()
        self.last_active = 0.0  # when a request began or ended (time.monotonic)
        self._names: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(name, text, labels, registry=registry, buckets=buckets)

        self._requests = counter("serve_requests", "Requests answered, by HTTP status", "model", "version", "code")
        self._seconds = histogram("serve_request_seconds", "Time in the Flask app", REQUEST_BUCKETS, "model")
        self._stages = histogram("serve_stage_seconds", "Time by stage", STAGE_BUCKETS, "model", "stage")
        self._received = histogram("serve_request_bytes", "Size of the requests' bodies", SIZE_BUCKETS)
        self._sent = histogram("serve_response_bytes", "Size of the replies' bodies", SIZE_BUCKETS)
        self._loads = counter("serve_model_loads", "Loads of models, by result", "result")
        self._unloads = counter("serve_model_unloads", "Unloads of models, by result", "result")
        self._in_flight = Gauge(
            "serve_in_flight", "Requests in work in the Flask app", registry=registry, multiprocess_mode="livesum"
        )

    def started(self) -> None:
        """A request is in work from now on."""
        self.last_active = time.monotonic()
        self._in_flight.inc()

    def finished(self, request: Finished) -> None:
        """The end of what `started` began."""
        self.last_active = time.monotonic()
        self._in_flight.dec()
        self.count(request)

    def count(self, request: Finished, times: int = 1) -> None:
        """So many requests that were alike."""
        model, version = self._bounded(request.model, request.version)
        self._requests.labels(model, version, str(request.status)).inc(times)
        _observe(self._seconds.labels(model), request.seconds, times)
        for stage, seconds in request.stages.items():
            _observe(self._stages.labels(model, stage), seconds, times)
        _observe(self._received, request.received, times)
        if request.sent is not None:
            _observe(self._sent, request.sent, times)

    def count_past_python(self, model: str, version: str, seconds: float, times: int) -> None:
        """So many requests that the door handed to Triton and that took equally long; their status is 200."""
        model, version = self._bounded(model, version)
        self._requests.labels(model, version, "200").inc(times)
        observed = self._seconds.labels(model)
        for _ in range(times):
            observed.observe(seconds)

    def count_load(self, result: str) -> None:
        """A load of a model has ended: "ok", or the code of the ServingError."""
        self._loads.labels(result).inc()

    def count_unload(self, result: str) -> None:
        """An unload of a model has ended: "ok", or the code of the ServingError."""
        self._unloads.labels(result).inc()

    def render(self, triton: bytes | None, in_nginx: int | None = None) -> bytes:
        """All of ours, then Triton's own text; None when it could not be had. `in_nginx` is what NGINX_WRITING says,
        None where no nginx is."""
        supervised = CollectorRegistry()
        supervised.register(_Supervised(self._status_file, triton is not None, in_nginx))
        folder = _folder()
        with _shared(folder):
            ours = generate_latest(_all_workers(folder) if folder else self._registry)
        return ours + generate_latest(supervised) + (triton or b"")

    def _bounded(self, model: str, version: str) -> tuple[str, str]:
        pair = (model, version)
        with self._lock:
            if pair not in self._names and len(self._names) >= MOST_MODELS:
                return OTHER, ""
            self._names.add(pair)
        return pair


def _observe(histogram: Histogram, value: float, times: int) -> None:
    """As Histogram.observe so many times, for which prometheus_client has no method."""
    histogram._sum.inc(value * times)
    bucket = next(i for i, bound in enumerate(histogram._upper_bounds) if value <= bound)
    histogram._buckets[bucket].inc(times)


class _Supervised(Collector):
    """What the supervisor, nginx and Triton say at the moment of the scrape."""

    def __init__(self, status_file: Path | None, triton_up: bool, in_nginx: int | None) -> None:
        self._status_file, self._triton_up, self._in_nginx = status_file, triton_up, in_nginx

    def collect(self) -> Iterable[Metric]:
        if self._in_nginx is not None:
            others = max(0, self._in_nginx - 1)
            yield GaugeMetricFamily("serve_nginx_in_flight", "Requests in work, whoever works on them", value=others)
        yield GaugeMetricFamily("serve_triton_up", "Whether Triton gave its metrics", value=float(self._triton_up))
        starts = CounterMetricFamily("serve_process_starts", "Starts of each process", labels=["process"])
        for name, process in self._processes().items():
            starts.add_metric([name], float(process.get("starts", 0)))
        yield starts

    def _processes(self) -> dict[str, dict[str, float]]:
        try:
            return dict(json.loads(self._status_file.read_text())["processes"]) if self._status_file else {}
        except (OSError, ValueError, KeyError):
            return {}


def bury_others() -> None:
    """When gunicorn starts: what a killed one and its workers have left."""
    if folder := _folder():
        pids = {int(found[1]) for file in folder.iterdir() if (found := re.fullmatch(r".+_(\d+)\.db", file.name))}
        for pid in pids - {os.getpid()}:
            bury(pid)


def bury(pid: int) -> None:
    """Adds the counts of a process that has ended to those of all ended ones, so that files do not pile up; what
    it had in work is in work no more."""
    if not (folder := _folder()):
        return
    with _locked(folder, fcntl.LOCK_EX):
        for kind in ("counter", "histogram"):
            if (file := folder / f"{kind}_{pid}.db").exists():
                _add(file, folder / f"{kind}_ended.db")
                file.unlink()
        mark_process_dead(pid, str(folder))


def _add(source: Path, target: Path) -> None:
    total = MmapedDict(str(target))
    for key, value, _timestamp, _position in MmapedDict.read_all_values_from_file(str(source)):
        total.write_value(key, total.read_value(key)[0] + value, 0.0)
    total.close()


def _all_workers(folder: Path) -> CollectorRegistry:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))
    return registry


def _folder() -> Path | None:
    name = os.environ.get(MULTIPROCESS)
    return Path(name) if name else None


@contextmanager
def _shared(folder: Path | None) -> Iterator[None]:
    """A scrape sees the files of an ended worker or the sum they went into, never both."""
    if folder is None:
        yield
        return
    with _locked(folder, fcntl.LOCK_SH):
        yield


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[None]:
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, kind)
        yield
