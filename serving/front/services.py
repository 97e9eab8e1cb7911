"""Creates the objects that all routes of the Flask app share."""

import ctypes
import gc
import time
from functools import partial

import flask

from serving.bodies.decoder import Decoder
from serving.budget import Budget
from serving.codecs import Limits
from serving.front.admission import Admission
from serving.front.hang_ups import HangUps
from serving.front.manager_calls import want_model
from serving.front.metrics import Metrics
from serving.front.monitoring import Monitoring
from serving.host.machine import shm_size
from serving.model_status.registry import Registry
from serving.model_status.shared_files import TOTAL, ModelsFile
from serving.settings.settings import ON_DEMAND, Settings
from serving.triton.gateway import TritonGateway

# The workers may use 1 / SHARED_MEMORY_PART of /dev/shm for inputs, but at most MOST_SHARED_MEMORY
# bytes in total. Triton's Python backends need the rest.
SHARED_MEMORY_PART = 8
MOST_SHARED_MEMORY = 256 * 2**20
IDLE_SECONDS = 2.0  # a worker is idle if no request has begun or ended for this long
# When requests have freed this many bytes, even a busy worker returns freed memory to the system.
MUCH_FREED = 2**28


class Services:
    """The objects that the routes share. They are created once per app."""

    def __init__(self, settings: Settings, shared_prefix: str) -> None:
        self.settings = settings
        shared_limit = min(shm_size() // SHARED_MEMORY_PART, MOST_SHARED_MEMORY)
        self.gateway = TritonGateway(
            f"unix:{settings.triton_grpc}",
            settings.grpc_timeout,
            metrics_socket=settings.triton_metrics,
            stream_timeout=settings.stream_timeout,
            shared_prefix=shared_prefix,
            shared_limit=shared_limit // settings.all_workers,
        )
        # Only `serve` makes the path of the run folder absolute. Without `serve`, no other process
        # shares the leases.
        has_run_folder = settings.run_dir.is_absolute()
        leases = settings.leases_file if has_run_folder else None
        self.admission = Admission(
            limit=settings.max_concurrency,
            most_bytes=settings.request_memory,
            several_models=settings.several_models,
            workers=settings.most_workers,
            leases=leases,
        )
        want = partial(want_model, settings) if settings.policy == ON_DEMAND else None
        self.registry = Registry(
            self.gateway,
            ModelsFile(settings.models_file),
            deaths=settings.deaths_socket,
            default=settings.default_model,
            want=want,
        )
        self.budget = Budget(settings.max_body_bytes)
        # how many requests may decode instances of one kind and size at a time in this worker
        turns = max(1, settings.inference_threads // settings.workers)
        self.decoder = Decoder(Limits(), turns, settings.inference_threads)
        self.monitoring = Monitoring(self.registry, settings.status_file)
        self.hang_ups = HangUps()
        self.metrics = Metrics()

    def scrape(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return self.monitoring.scrape(self.metrics.registry, self.admission.leases.requests(TOTAL))

    def trim_memory(self) -> None:
        """Return freed memory to the system, whenever the worker has been idle for a while or has
        freed a lot of memory. Runs in a separate thread and never ends.

        Until then, the worker keeps the memory for the next request. Otherwise, page faults would
        take two fifths of the time that it spends on images. After 16 callers have sent photos of
        12 megapixels, two idle workers hold 120 MB with this method, and 390 MB without it.
        """
        libc = ctypes.CDLL(None)
        trimmed = 0.0  # the value of last_active when the worker was last idle
        returned = 0  # the value of freed when memory was last returned
        while True:
            time.sleep(IDLE_SECONDS)
            active = self.admission.last_active
            freed = self.admission.freed
            is_idle = active > trimmed and time.monotonic() - active > IDLE_SECONDS
            if is_idle:
                self.gateway.shared_memory.trim()
                gc.collect()  # only when idle, because requests would have to wait for it
                trimmed = active
            if is_idle or freed - returned > MUCH_FREED:
                libc.malloc_trim(0)
                returned = freed


def services() -> Services:
    """Return the shared objects of the current Flask app."""
    return flask.current_app.extensions["serving"]  # type: ignore[no-any-return]
