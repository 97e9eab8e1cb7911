"""Implements /ping, which checks whether the server works, and /metrics, which collects the
metrics of all workers."""

import os
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from serving.budget import Deadline
from serving.errors import TooLate, TritonTimeout, TritonUnavailable
from serving.front.metrics import MOST_MODELS
from serving.host.files import ProcessStatus, read_status, read_tritonserver
from serving.model_status.models import Models
from serving.model_status.registry import Registry
from serving.model_status.states import ADDING, LOADING
from serving.settings.settings import ON_DEMAND

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
# maps the model manager's counters (Models.counts) to their descriptions in /metrics
ON_DEMAND_COUNTS = {
    "loads": "Models loaded by a call",
    "unpack_seconds": "Seconds spent on fetching and unpacking them",
    "load_seconds": "Seconds spent on making room for them and loading them",
    "evictions": "Models evicted",
    "eviction_seconds": "Seconds spent on that",
    "thrash": "Models loaded again within a minute of their eviction",
}
ANSWER_SECONDS = 1.7  # the time limit of /ping, for which nginx and SageMaker wait 2 s


class Monitoring:
    """Implements /ping and /metrics. `status_file` is the file in which process 1 reports the
    status of all processes."""

    def __init__(self, registry: Registry, status_file: Path) -> None:
        self.registry = registry
        self.status_file = status_file

    def check_ready(self) -> None:
        """Raise TritonUnavailable if Triton is not live, or else the error that Models.unready
        returns, if any. Wait for ANSWER_SECONDS at most."""
        self.check_live()
        if error := self.registry.table.look().unready():
            raise error

    def check_live(self) -> None:
        """Raise TritonUnavailable if Triton is not live. Wait for ANSWER_SECONDS at most."""
        try:
            is_live = self.registry.gateway.is_live(Deadline.after(ANSWER_SECONDS))
        except (TritonTimeout, TooLate) as err:
            raise TritonUnavailable(
                "tritonserver is running but does not answer: it hangs or is overloaded"
            ) from err
        if not is_live:
            raise TritonUnavailable("tritonserver answers but is not live")

    def check_model(self, name: str, version: str | None = None) -> None:
        """Raise TritonUnavailable if Triton is not live. If the model or this version of it is not
        ready, raise the error that says why. Wait for ANSWER_SECONDS at most."""
        self.check_live()
        self.registry.check(name, version)

    def describe_triton(self) -> str:
        """Describe tritonserver's state as the supervisor reported it. Return "" if there is no
        report."""
        process = read_tritonserver(self.status_file)
        if process.state == "unknown":
            return ""
        last = f", after it {process.last_exit}" if process.last_exit else ""
        return f"tritonserver is {process.state} (start {process.starts}{last})"

    def scrape(self, own: CollectorRegistry, in_flight: int) -> bytes:
        """Return the metrics in Prometheus' text format. First come this project's metrics, summed
        over all of gunicorn's workers, then those of Triton, if Triton answers. If the workers do
        not share files, the metrics of this worker, `own`, are returned instead of the sums."""
        try:
            triton = self.registry.gateway.metrics()
            is_up = True
        except (TritonUnavailable, TritonTimeout):
            triton = b""
            is_up = False
        if MULTIPROCESS in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        else:
            registry = own
        table = self.registry.table.look()
        counted = list(registry.collect())
        families = [
            *counted,
            _gauge("in_flight", "Requests in flight in the Flask app", in_flight),
            _gauge("triton_up", "Whether Triton gave its metrics", is_up),
            *_process_metrics(read_status(self.status_file)),
            *_model_metrics(table),
        ]
        if table.policy == ON_DEMAND.name:
            families.append(_hit_counter(counted))
        return generate_latest(_Families(families)) + triton


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"serve_{name}", text, value=value)


def _process_metrics(processes: Mapping[str, ProcessStatus]) -> list[Metric]:
    starts = CounterMetricFamily(
        "serve_process_starts", "Starts of each process", labels=["process"]
    )
    up = GaugeMetricFamily("serve_process_up", "Whether each process runs", labels=["process"])
    for name, process in processes.items():
        starts.add_metric([name], process.starts)
        up.add_metric([name], process.pid is not None)
    return [starts, up]


def _model_metrics(table: Models) -> list[Metric]:
    crashes = CounterMetricFamily(
        "serve_model_crashes", "Deaths of processes of a model", labels=["model"]
    )
    for name, deaths in sorted(table.deaths.items())[:MOST_MODELS]:
        crashes.add_metric([name], deaths)
    loading = {name for name, entry in table.entries.items() if entry.state in (ADDING, LOADING)}
    loading.update(table.loading)
    families: list[Metric] = [
        crashes,
        _gauge("models_loading", "Models that are being loaded", len(loading)),
    ]
    if table.policy == ON_DEMAND.name:
        for name, text in ON_DEMAND_COUNTS.items():
            count = table.counts.get(name, 0)
            families.append(CounterMetricFamily(f"serve_on_demand_{name}", text, value=count))
    return families


def _hit_counter(counted: Iterable[Metric]) -> Metric:
    """Return a counter of the requests that found their model loaded. Its value is the number of
    requests whose model was found, less those that waited for their model to be loaded. Both are in
    `counted`, so requests need not update another counter."""
    hits = 0.0
    for sample in chain.from_iterable(metric.samples for metric in counted):
        if sample.labels.get("model"):
            if sample.name == "serve_request_seconds_count":
                hits += sample.value
            elif sample.name == "serve_stage_seconds_count" and sample.labels["stage"] == "load":
                hits -= sample.value
    text = "Requests whose model was loaded already"
    return CounterMetricFamily("serve_on_demand_hits", text, value=hits)


class _Families(list[Metric], Collector):
    """Metrics in the form that generate_latest accepts."""

    def collect(self) -> Iterable[Metric]:
        return self
