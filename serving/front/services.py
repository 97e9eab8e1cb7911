"""What the Flask app's routes use, made once per app."""

from flask import current_app

from serving.codecs import Limits
from serving.decoding import Decoder
from serving.front.door_log import DoorLog
from serving.front.hangups import HangUps
from serving.front.health import Health
from serving.front.idle import IdleTrim
from serving.front.in_flight import InFlight
from serving.front.management import Management
from serving.front.metrics import Metrics
from serving.host import tritonserver
from serving.host.machine import memory_limit, shm_size
from serving.inference.registry import Registry
from serving.inference.service import Inference
from serving.multimodel.control import MultiModel
from serving.multimodel.memory import Budget
from serving.multimodel.records import LoadedModels
from serving.preparation.staging import Staging
from serving.settings.table import Settings
from serving.settings.triton_access import SECRET_KEY, TritonAccess
from serving.triton.gateway import TritonGateway

# Of all workers' inputs in /dev/shm: one of so many parts of it, for Triton's Python backends take the rest, and no
# more than so many bytes.
SHARED_MEMORY_PART = 8
SECRET_HEADER = f"triton-grpc-protocol-{SECRET_KEY}"  # what a Triton asks for whose gRPC others can reach too
MOST_SHARED_MEMORY = 256 * 2**20


class Services:
    """What the routes use, made once per app."""

    def __init__(self, settings: Settings, access: TritonAccess) -> None:
        self.gateway = TritonGateway(
            access.grpc_address,
            settings.grpc_timeout,
            metrics_address=access.metrics_address,
            stream_timeout=settings.stream_timeout,
            sagemaker_address=access.sagemaker_address,
            metadata=[(SECRET_HEADER, access.secret)] if settings.allow_grpc else (),
            shared_prefix=access.shared_memory,
            shared_limit=min(shm_size() // SHARED_MEMORY_PART, MOST_SHARED_MEMORY) // settings.workers,
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
        self.inference = Inference(self.gateway, Decoder(limits, turns, threads))
        self.health = Health(self.registry, self.inference, settings.status_file, settings.triton_restart_request)
        self.hang_ups = HangUps()
        self.ping_mode = settings.ping_mode
        self.inference_type = settings.inference_type
        self.execution_parameters = settings.execution_parameters
        self.metrics = Metrics(settings.status_file)
        self.idle_trim = IdleTrim(lambda: self.in_flight.last_active, self.gateway.shared_memory.trim)
        self.in_flight = InFlight(settings.max_concurrency)
        self.beats = settings.gunicorn_beats
        self.door_log = DoorLog(settings.door_log, self.metrics)
        self.multi_model = multi_model(settings, self.registry) if settings.multi_model else None
        self.models: Registry | MultiModel = self.multi_model or self.registry
        self.management = Management(settings.management_secret)


def multi_model(settings: Settings, registry: Registry) -> MultiModel:
    """For SAGEMAKER_MULTI_MODEL=true."""
    loaded = LoadedModels(settings.models_folder, settings.status_file)
    budget = Budget(int(settings.model_memory_share * memory_limit()))
    staging = Staging(settings, tritonserver.backend_directory())
    return MultiModel(registry, loaded, settings.models_root, budget, settings.load_timeout, staging.fit)


def services() -> Services:
    """The running app's."""
    found: Services = current_app.extensions["serving"]
    return found
