"""Counts requests, for the metrics that monitoring.py returns. Each worker keeps its counts in its
own files in PROMETHEUS_MULTIPROC_DIR, which prometheus_client opens when the worker first counts
something. If that variable is not set, the counts are kept in memory."""

import threading
from functools import cache, partial

from flask import Response
from prometheus_client import CollectorRegistry, Counter, Histogram

from serving.front.incoming import Incoming

OTHER = "(other)"
# The maximum number of pairs of model and version that are counted separately, because each takes
# memory, and time in every scrape. Further pairs are counted together as OTHER.
MOST_MODELS = 100
REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
STAGE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
SIZE_BUCKETS = tuple(float(4**power) for power in range(3, 16))  # from 64 bytes to 1 GB


class Metrics:
    """The metrics of this worker. Thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._names: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        requests = counter(
            "serve_requests", "Requests answered, by HTTP status", ["model", "version", "code"]
        )
        seconds = histogram(
            "serve_request_seconds", "Time in the Flask app", ["model"], buckets=REQUEST_BUCKETS
        )
        stages = histogram(
            "serve_stage_seconds", "Time by stage", ["model", "stage"], buckets=STAGE_BUCKETS
        )
        # Cache the results of `labels`, which would take a third of the time of counting a request.
        # MOST_MODELS limits the size of the caches.
        self._requests = cache(requests.labels)
        self._seconds = cache(seconds.labels)
        self._stages = cache(stages.labels)
        self._received = histogram(
            "serve_request_bytes", "Size of the requests' bodies", buckets=SIZE_BUCKETS
        )
        self._sent = histogram(
            "serve_response_bytes", "Size of the replies' bodies", buckets=SIZE_BUCKETS
        )
        self.loads = counter("serve_model_loads", "Loads of models, by result", ["result"])
        self._misses = counter(
            "serve_on_demand_misses", "Requests that waited for their model to be loaded"
        )
        self.unloads = counter("serve_model_unloads", "Unloads of models, by result", ["result"])

    def count(self, source: Incoming, response: Response, seconds: float) -> None:
        """Count a request that took `seconds` to answer."""
        model = source.model
        version = source.version
        if (model, version) not in self._names:
            with self._lock:
                if len(self._names) < MOST_MODELS:
                    self._names.add((model, version))
                else:
                    model = OTHER
                    version = ""
        self._requests(model, version, response.status_code).inc()
        # Count the stages before `_seconds`. Otherwise a scrape could mistake a request that waited
        # for its model for one that did not (_hit_counter in monitoring.py).
        for stage, spent in source.timings.items():
            self._stages(model, stage).observe(spent)
        self._seconds(model).observe(seconds)
        if "load" in source.timings:
            self._misses.inc()
        self._received.observe(source.content_length or 0)
        length = response.content_length
        if length is not None:  # a stream has none
            self._sent.observe(length)
