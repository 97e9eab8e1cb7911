"""What the Flask app's routes use, made once per app."""

from flask import current_app

from serving.codecs import Limits
from serving.front.door_log import DoorLog
from serving.front.hangups import HangUps
from serving.front.health import Health
from serving.front.idle import IdleTrim
from serving.front.management import Management
from serving.front.metrics import Metrics
from serving.host import tritonserver
from serving.host.machine import memory_limit, shm_size
from serving.inference.decoding import Decoder
from serving.inference.pipeline import Pipeline
from serving.inference.registry import Registry
from serving.multimodel.loaded import LoadedModels
from serving.multimodel.loader import MultiModel
from serving.multimodel.memory import Budget
from serving.preparation.archive_plans import ArchivePlans
from serving.preparation.completion import Completion
from serving.settings.table import Settings
from serving.triton.gateway import TritonGateway

# Of all workers' inputs in /dev/shm: one of so many parts of it, for Triton's Python backends take the rest, and no
# more than so many bytes.
SHARED_MEMORY_PART = 8
MOST_SHARED_MEMORY = 256 * 2**20


class Services:
    """What the routes use, made once per app."""

    def __init__(self, settings: Settings) -> None:
        host = "127.0.0.1"
        self.gateway = TritonGateway(
            settings.triton_grpc_address,
            f"{host}:{settings.triton_http_port}",
            settings.grpc_timeout,
            settings.triton_metrics_address,
            settings.stream_timeout,
            f"{host}:{settings.triton_sagemaker_port}",
            settings.triton_secret if settings.allow_grpc else "",
            settings.shared_memory,
            min(shm_size() // SHARED_MEMORY_PART, MOST_SHARED_MEMORY) // settings.workers,
        )
        self.registry = Registry(
            self.gateway,
            settings.model_repositories,
            settings.default_model,
            settings.model_clients,
            settings.load_models,
        )
        turns = max(1, settings.inference_threads // settings.workers)
        limits, threads = Limits(settings.max_image_pixels), settings.inference_threads
        self.pipeline = Pipeline(self.gateway, Decoder(limits, turns, threads, settings.reduced_decoding))
        self.health = Health(self.registry, self.pipeline, settings.status_file)
        self.hang_ups = HangUps()
        self.ping_mode = settings.ping_mode
        self.inference_type = settings.inference_type
        self.execution_parameters = settings.execution_parameters
        self.metrics = Metrics(settings.status_file)
        self.idle_trim = IdleTrim(lambda: self.metrics.last_active, self.gateway.shared_memory.trim)
        self.door_log = DoorLog(settings.door_log, self.metrics)
        self.multi_model = multi_model(settings, self.registry) if settings.multi_model else None
        self.management = Management(settings.management, settings.management_secret)


def multi_model(settings: Settings, registry: Registry) -> MultiModel:
    """For SAGEMAKER_MULTI_MODEL=true."""
    loaded = LoadedModels(settings.models_folder, settings.status_file)
    budget = Budget(int(settings.model_memory_share * memory_limit()))
    steps = (ArchivePlans(settings), Completion(settings, tritonserver.backend_directory()))
    return MultiModel(registry, loaded, settings.models_root, budget, settings.load_timeout, steps)


def services() -> Services:
    """The running app's."""
    found: Services = current_app.extensions["serving"]
    return found
