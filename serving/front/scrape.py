"""GET /metrics: the text of Prometheus, ours summed over all of gunicorn's workers, then Triton's."""

import os
from collections.abc import Iterable, Mapping

from flask import Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from serving.errors import TritonTimeout, TritonUnavailable
from serving.front.incoming import services
from serving.front.metrics import MOST_MODELS, MULTIPROCESS
from serving.host.files import ProcessStatus, read_status
from serving.models.table import TOTAL

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def metrics() -> Response:
    """Return our metrics and Triton's; ours alone if Triton does not answer."""
    app = services()
    try:
        triton, up = app.gateway.metrics(), True
    except (TritonUnavailable, TritonTimeout):
        triton, up = b"", False
    in_flight, deaths = app.admission.leases.requests(TOTAL), app.registry.models().deaths
    gauges = Gauges(read_status(app.settings.status_file), up, in_flight, deaths)
    return Response(render(app.metrics.registry, gauges) + triton, content_type=CONTENT_TYPE)


def render(registry: CollectorRegistry, *further: Collector) -> bytes:
    """Return the series of all workers, and what the further collectors say now."""
    if MULTIPROCESS in os.environ:
        MultiProcessCollector(registry := CollectorRegistry())
    own = CollectorRegistry()
    for collector in further:
        own.register(collector)
    return generate_latest(registry) + generate_latest(own)


class Gauges(Collector):
    """Report the state of the workers, Triton, the manager and the supervisor at the time of the scrape."""

    def __init__(
        self, processes: Mapping[str, ProcessStatus], triton_up: bool, in_flight: int, deaths: Mapping[str, int]
    ) -> None:
        self._processes, self._triton_up, self._in_flight = processes, triton_up, in_flight
        self._deaths = dict(sorted(deaths.items())[:MOST_MODELS])

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("serve_in_flight", "Requests in flight in the Flask app", value=self._in_flight)
        yield GaugeMetricFamily("serve_triton_up", "Whether Triton gave its metrics", value=float(self._triton_up))
        starts = CounterMetricFamily("serve_process_starts", "Starts of each process", labels=["process"])
        up = GaugeMetricFamily("serve_process_up", "Whether each process runs", labels=["process"])
        for name, process in self._processes.items():
            starts.add_metric([name], process.starts)
            up.add_metric([name], float(process.pid is not None))
        crashes = CounterMetricFamily("serve_model_crashes", "Deaths of processes of a model", labels=["model"])
        for name, times in self._deaths.items():
            crashes.add_metric([name], times)
        yield from (starts, up, crashes)
