"""What the Flask app's routes use, made once per app. What only some settings need is imported where it is made: it
takes memory, and time of each start."""

from typing import TYPE_CHECKING

from flask import current_app

from serving.budget import Budget
from serving.codecs import Limits
from serving.decoding import Decoder
from serving.front.admission import Admission
from serving.front.hangups import HangUps
from serving.front.health import Health
from serving.front.idle import IdleTrim
from serving.front.metrics import Metrics
from serving.host import tritonserver
from serving.host.machine import memory_limit, shm_size
from serving.inference.crashes import Crashes
from serving.inference.keeper import Keeper, LoadedAtStart, Tritonserver
from serving.inference.registry import Registry
from serving.inference.service import Inference
from serving.settings.table import Settings
from serving.triton.gateway import TritonGateway

if TYPE_CHECKING:
    from serving.multimodel.control import MultiModel

# Of all workers' inputs in /dev/shm: one of so many parts of it, for Triton's Python backends take the rest, and no
# more than so many bytes.
SHARED_MEMORY_PART = 8
PROCESSES_PER_WORKER = 4  # one that works, others that are ending; and gunicorn's master
MOST_SHARED_MEMORY = 256 * 2**20


class Services:
    """What the routes use, made once per app."""

    def __init__(self, settings: Settings, shared_memory: str) -> None:
        sockets = settings.triton_sockets
        self.gateway = TritonGateway(
            f"unix:{sockets.grpc}",
            settings.grpc_timeout,
            metrics_socket=sockets.metrics,
            stream_timeout=settings.stream_timeout,
            sagemaker_socket=sockets.sagemaker,
            shared_prefix=shared_memory,
            shared_limit=min(shm_size() // SHARED_MEMORY_PART, MOST_SHARED_MEMORY) // settings.workers,
        )
        self.registry = registry(settings, self.gateway)
        turns = max(1, settings.inference_threads // settings.workers)
        self.budget = Budget(settings.max_body_bytes, settings.max_image_pixels)
        limits, threads = Limits(self.budget.image_pixels), settings.inference_threads
        self.inference = Inference(self.gateway, Decoder(limits, turns, threads))
        self.health = Health(self.registry, self.inference, settings.status_file)
        self.hang_ups = HangUps()
        self.ping_mode = settings.ping_mode
        self.inference_type = settings.inference_type
        self.execution_parameters = settings.execution_parameters
        self.metrics = Metrics(settings.status_file)
        self.idle_trim = IdleTrim(lambda: self.admission.last_active, self.gateway.shared_memory.trim)
        most_workers = PROCESSES_PER_WORKER * settings.workers + 1
        self.admission = Admission(settings.max_concurrency, settings.several_models, most_workers)
        server = Tritonserver(settings.status_file, settings.triton_restart_request)
        self.multi_model = multi_model(settings, self.registry, server) if settings.multi_model else None
        self.models: Registry | MultiModel = self.multi_model or self.registry
        self.keeper = Keeper(
            self.registry.crashes,
            self.multi_model or LoadedAtStart(self.gateway, settings.start_timeout),
            settings.run_dir,
            server,
            self.metrics.count_crash,
        )


def registry(settings: Settings, gateway: TritonGateway) -> Registry:
    """Of the models that `serve` has loaded."""
    crashes = Crashes(settings.run_dir / "crashes")
    default = settings.default_model
    if settings.reloads:
        from serving.inference.live_registry import LiveRegistry
        from serving.repository.live import LiveModels

        return LiveRegistry(gateway, LiveModels(settings.live_folder), default, crashes)
    folders, only = settings.model_repositories, settings.load_models
    return Registry(gateway, folders, default, only, crashes, settings.device)


def multi_model(settings: Settings, registry: Registry, server: Tritonserver) -> "MultiModel":
    """For SAGEMAKER_MULTI_MODEL=true."""
    from serving.multimodel.control import MultiModel
    from serving.multimodel.memory import ModelMemory
    from serving.multimodel.records import LoadedModels
    from serving.preparation.staging import Staging

    loaded = LoadedModels(settings.models_folder, settings.status_file)
    budget = ModelMemory(int(settings.model_memory_share * memory_limit()))
    staging = Staging(settings, tritonserver.backend_directory())
    root, timeout = settings.models_root, settings.load_timeout
    return MultiModel(registry, loaded, root, budget, timeout, staging.fit, server.ask_restart)


def services() -> Services:
    """The running app's."""
    found: Services = current_app.extensions["serving"]
    return found
