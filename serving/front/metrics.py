"""Counts the requests, and writes GET /metrics in Prometheus' text format, all of gunicorn's workers summed.

Where the environment names a folder in PROMETHEUS_MULTIPROC_DIR (as `serve` does) every worker keeps its numbers
in files there, which prometheus_client opens after the fork, at the first use in a new process; without one (a
test, one process) they are kept in memory.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter

from flask import Flask, Response
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from serving.front.admission import Admission
from serving.front.incoming import Incoming, incoming
from serving.host.files import read_status
from serving.models.table import Table

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
RESERVED = 64 * 1024  # bytes of each file, enough for some ten models
OTHER = "(other)"
MOST_MODELS = 100  # more (model, version) pairs than these share OTHER: a series is memory and time of every scrape
REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
STAGE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
SIZE_BUCKETS = tuple(float(4**power) for power in range(3, 16))  # 64 bytes … 1 GB

WATCHED_BY_OTHERS = ("ping", "metrics")  # endpoints whose calls say nothing of the models' users

log = logging.getLogger(__name__)


class Metrics:
    """Counts; safe to share between threads. `status_file` is the supervisor's, `table` the model manager's; None where
    there is none."""

    def __init__(self, status_file: Path | None = None, table: Table | None = None) -> None:
        self._status_file, self._table = status_file, table
        self._registry = registry = CollectorRegistry()
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
        self.loads = counter("serve_model_loads", "Loads of models, by result", "result")
        self.unloads = counter("serve_model_unloads", "Unloads of models, by result", "result")

    def count(
        self,
        model: str,
        version: str,
        status: int,
        seconds: float,
        received: int,
        sent: int | None,
        stages: Mapping[str, float],
    ) -> None:
        """Count a request that was answered. `model` is "" when it named none that is served; `received` and `sent` are
        bytes, and `sent` is None for a stream."""
        model, version = self._bounded(model, version)
        self._requests.labels(model, version, str(status)).inc()
        self._seconds.labels(model).observe(seconds)
        for stage, spent in stages.items():
            self._stages.labels(model, stage).observe(spent)
        self._received.observe(received)
        if sent is not None:
            self._sent.observe(sent)

    def render(self, triton: bytes | None, in_flight: int) -> bytes:
        """Return our metrics, then Triton's text (None: it could not be had). `in_flight` counts Flask's requests."""
        gauges = CollectorRegistry()
        deaths = self._table.look().deaths if self._table else {}
        gauges.register(_Gauges(self._status_file, triton is not None, in_flight, deaths))
        registry = self._registry
        if MULTIPROCESS in os.environ:
            MultiProcessCollector(registry := CollectorRegistry())
        ours = generate_latest(registry)
        return ours + generate_latest(gauges) + (triton or b"")

    def _bounded(self, model: str, version: str) -> tuple[str, str]:
        pair = (model, version)
        with self._lock:
            if pair not in self._names and len(self._names) >= MOST_MODELS:
                return OTHER, ""
            self._names.add(pair)
        return pair


class Observer:
    """Counts every request but those of WATCHED_BY_OTHERS, once it was admitted. Adds the
    headers that nginx logs: Server-Timing has the milliseconds of each stage."""

    def __init__(self, metrics: Metrics, admission: Admission) -> None:
        self._metrics, self._admission = metrics, admission

    def watch(self, app: Flask) -> None:
        """Add the hooks. Call it before other hooks are added."""
        app.before_request(self._begin)
        app.after_request(self._end)

    def _begin(self) -> None:
        source = incoming()
        if source.endpoint in WATCHED_BY_OTHERS:
            return
        source.started = perf_counter()
        source.slot = self._admission.enter(source.content_length or 0)

    def _end(self, response: Response) -> Response:
        """Count the request when its reply ends. A streamed reply ends when it is closed, after its last part."""
        source = incoming()
        source.drain()
        if source.started is None:
            return response
        if header := source.timings.header():
            response.headers["Server-Timing"] = header
        started, received = source.started, source.content_length or 0
        sent = None if response.is_streamed else response.calculate_content_length()
        self._count_management(source, response)

        def finish() -> None:
            if slot := getattr(source, "slot", None):
                slot.leave()
            about = (source.model, source.version, response.status_code, perf_counter() - started)
            self._metrics.count(*about, received, sent, source.timings)

        if response.is_streamed:
            response.call_on_close(finish)
        else:
            finish()
        return response

    def _count_management(self, source: Incoming, response: Response) -> None:
        """Count a load for POST /models, an unload for DELETE /models/NAME, by "ok" or the error's code."""
        rule = source.url_rule.rule if source.url_rule else ""
        result = response.headers.get("X-Error-Code", "ok")
        if source.method == "POST" and rule == "/models":
            self._metrics.loads.labels(result).inc()
        elif source.method == "DELETE" and rule.startswith("/models/"):
            self._metrics.unloads.labels(result).inc()


def reserve_files() -> None:
    """Reserve disk space for this worker's counts. prometheus_client maps its files into memory, and the kernel kills a
    process that writes to a mapped page for which the disk has no room."""
    for kind in ("counter", "histogram"):
        with (
            contextlib.suppress(OSError),
            Path(os.environ[MULTIPROCESS], f"{kind}_{os.getpid()}.db").open("ab") as file,
        ):
            os.posix_fallocate(file.fileno(), 0, RESERVED)


class _Gauges(Collector):
    """Report the state of the workers, Triton, the manager and the supervisor at the time of the scrape."""

    def __init__(self, status_file: Path | None, triton_up: bool, in_flight: int, deaths: Mapping[str, int]) -> None:
        self._status_file, self._triton_up, self._in_flight = status_file, triton_up, in_flight
        self._deaths = deaths

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("serve_in_flight", "Requests in work in the Flask app", value=self._in_flight)
        yield GaugeMetricFamily("serve_triton_up", "Whether Triton gave its metrics", value=float(self._triton_up))
        starts = CounterMetricFamily("serve_process_starts", "Starts of each process", labels=["process"])
        processes = read_status(self._status_file)
        for name, process in processes.items():
            starts.add_metric([name], process.starts)
        yield starts
        up = GaugeMetricFamily("serve_process_up", "Whether each process runs", labels=["process"])
        for name, process in processes.items():
            up.add_metric([name], float(process.pid is not None))
        yield up
        crashes = CounterMetricFamily("serve_model_crashes", "Deaths of processes of a model", labels=["model"])
        for name, times in sorted(self._deaths.items())[:MOST_MODELS]:
            crashes.add_metric([name], times)
        yield crashes
