"""What the Flask app's routes use, made once per app."""

from flask import current_app

from serving.budget import Budget
from serving.codecs import Limits
from serving.decoding import Decoder
from serving.front.hangups import HangUps
from serving.front.health import Health
from serving.front.idle import IdleTrim
from serving.front.metrics import Metrics
from serving.host.machine import shm_size
from serving.inference.registry import Registry
from serving.inference.service import Inference
from serving.models.admission import Admission
from serving.models.table import Table
from serving.settings.table import Settings
from serving.triton.gateway import TritonGateway

# Of all workers' inputs in /dev/shm: one of so many parts of it, for Triton's Python backends take the rest, and no
# more than so many bytes.
SHARED_MEMORY_PART = 8
MOST_SHARED_MEMORY = 256 * 2**20


class Services:
    """What the routes use, made once per app."""

    def __init__(self, settings: Settings, shared_memory: str) -> None:
        self.settings, sockets = settings, settings.triton_sockets
        self.gateway = TritonGateway(
            f"unix:{sockets.grpc}",
            settings.grpc_timeout,
            metrics_socket=sockets.metrics,
            stream_timeout=settings.stream_timeout,
            shared_prefix=shared_memory,
            shared_limit=min(shm_size() // SHARED_MEMORY_PART, MOST_SHARED_MEMORY) // settings.workers,
        )
        table, is_served = Table(settings.table_file), settings.run_dir.is_absolute()
        leases = settings.leases_file if is_served else None  # else this app stands alone
        self.admission = Admission(settings.max_concurrency, settings.several_models, settings.most_workers, leases)
        self.registry = Registry(
            self.gateway, table, self.admission, settings.default_model, settings.deaths_socket, settings.multi_model
        )
        turns = max(1, settings.inference_threads // settings.workers)
        self.budget = Budget(settings.max_body_bytes, settings.max_image_pixels)
        limits, threads = Limits(self.budget.image_pixels), settings.inference_threads
        self.inference = Inference(self.gateway, Decoder(limits, turns, threads))
        self.health = Health(self.registry, self.inference, settings.status_file)
        self.hang_ups = HangUps()
        self.metrics = Metrics(settings.status_file, table)
        self.idle_trim = IdleTrim(lambda: self.admission.last_active, self.gateway.shared_memory.trim)


def services() -> Services:
    """The running app's."""
    found: Services = current_app.extensions["serving"]
    return found
