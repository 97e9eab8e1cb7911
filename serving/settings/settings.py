"""Defines all settings in one table: their variables, defaults and descriptions. The variables are
read and checked once, and all mistakes are reported together.

`serve` determines the model repositories and the run folder, and then passes the settings to its
child processes as environment variables (`settings.environment()`).
"""

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import Any, ClassVar

from serving.host.machine import Machine, memory_limit, this_machine
from serving.named_value import BOOLEANS, Names
from serving.settings.setting import (
    LOG_LEVELS,
    Setting,
    SettingsError,
    bucket_url,
    format_paths,
    format_value,
    parse_header_secret,
    parse_log_level,
    parse_origins,
    parse_paths,
    parse_port_range,
    parse_switch,
)

AUTO = Path("auto")
ARCHIVES = Path("/opt/ml/models")  # where SageMaker unpacks the archives of multi-model mode
LONGEST_STREAM = 480.0  # seconds; SageMaker's limit for a streamed response
MEGABYTE = 1024 * 1024
MEMORY_PER_WORKER = 500 * MEGABYTE
MOST_DEFAULT_WORKERS = 16  # unless SERVE_WORKERS sets their number
LARGE_PERCENT = 75  # percent of SERVE_MAX_CONCURRENCY that requests with large bodies may use
DEFAULT_PAYLOAD = 6  # MB; batch transform's default for MaxPayloadInMB
LARGEST_BODY = 1024.0  # MB; the largest value of SERVE_MAX_BODY_MB
# The minimum memory for requests, as a multiple of the maximum size of a body. It is enough to
# parse one body, or to decode one image of the maximum size.
BODIES = 32
BATCH_MEGABYTES = 100  # batch transform's limit for the total size of its concurrent requests
# seconds; batch transform's InvocationsTimeoutInSeconds if a job does not set it
BATCH_TIMEOUT = 600.0
GRPC_PORT = 8001  # part of a socket's name, because Triton appends the port to any address
# Maps the options of tritonserver that only `serve` may set to the environment variable that
# determines the option, or to "" if none does.
_OWN_OPTIONS = {
    "http-port": "",
    "http-address": "",
    "sagemaker-port": "",
    "grpc-address": "SERVE_HOST",
    "grpc-port": "SAGEMAKER_TRITON_GRPC_PORT",
    "metrics-address": "SERVE_HOST",
    "metrics-port": "SAGEMAKER_TRITON_METRICS_PORT",
    "model-repository": "SERVE_MODEL_REPOSITORY",
    "model-store": "SERVE_MODEL_REPOSITORY",
    "load-model": "SERVE_LOAD_MODELS",
    "model-config-name": "SERVE_DEVICE",
    "model-control-mode": "SERVE_LOAD_MODELS or SERVE_RELOAD",
}


@dataclass(frozen=True)
class LoadPolicy:
    """Says when models are loaded. If they are loaded `by_call`, none is loaded at startup. If
    model folders may change while they are served, they are `copied` first."""

    name: str
    by_call: bool = False
    copied: bool = False


AT_START = LoadPolicy("at-start")
ON_CHANGE = LoadPolicy("on-change", copied=True)
ON_POST = LoadPolicy("on-post", by_call=True)
ON_DEMAND = replace(ON_POST, name="on-demand")
POLICIES = {policy.name: policy for policy in (AT_START, ON_CHANGE, ON_POST, ON_DEMAND)}


class _File:
    """An attribute of Settings: the path of the file or folder called `name` in the run folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, settings: "Settings", _: object = None) -> Path:
        return settings.run_dir / self._name


def _setting(variables: str, default: Any, **more: Any) -> Any:
    """Return a row of the table: a dataclass field, from whose metadata SETTINGS makes a Setting.
    If there are several `variables`, separated by spaces, the first one that is set counts."""
    columns = {"variables": tuple(variables.split()), "default": default, **more}
    return field(default=default, metadata=columns)


def _choice(variables: str, *choices: str, **more: Any) -> Any:
    """Return a row whose value is one of `choices`. The first choice is the default."""
    return _setting(variables, choices[0], choices=choices, **more)


# Returns a row like _choice, but ignores the value's case, and takes 1, yes and on for true, and 0,
# no and off for false.
_switch = partial(_choice, parser=parse_switch)


@dataclass(frozen=True)
class Settings:
    """The values of all settings. Each field is a row of the table. Timeouts are in seconds, and
    sizes called `…_mb` in MiB."""

    load_timeout: ClassVar[float] = 350.0  # SageMaker's own limit for a load or an unload is 360 s

    port: int = _setting(
        "SAGEMAKER_BIND_TO_PORT PORT",
        8080,
        minimum=1,
        maximum=65535,
        help="port that nginx listens on",
    )
    host: str = _setting("SERVE_HOST", "0.0.0.0", help="address that nginx listens on")
    origins: tuple[str, ...] = _setting(
        "SERVE_ORIGINS",
        Names(),
        parser=parse_origins,
        form="origins such as https://example.com, separated by commas",
        help="other origins whose pages may call the container",
    )
    safe_port_range: tuple[int, ...] = _setting(
        "SAGEMAKER_SAFE_PORT_RANGE",
        (),
        form="LOW-HIGH, two ports",
        parser=parse_port_range,
        formatter=lambda ports: "-".join(map(str, ports)),
        help="range for the public ports of gRPC and Triton's metrics",
    )
    model_repositories: tuple[Path, ...] = _setting(
        "SERVE_MODEL_REPOSITORY",
        (AUTO,),
        parser=parse_paths,
        formatter=format_paths,
        form="a folder, several separated by :, or the URL of a bucket (s3://, gs:// or az://)",
        help="folders of model folders; auto: /opt/ml/model if it has models, else the bundled "
        "models. In multi-model mode, the folder of archives; auto: /opt/ml/models. A bucket needs "
        "SERVE_MODELS=on-demand",
    )
    default_model: str = _setting(
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
        "",
        help="model for requests that name none; only this model, its parts and those in "
        "SERVE_LOAD_MODELS are loaded",
    )
    load_models: tuple[str, ...] = _setting(
        "SERVE_LOAD_MODELS",
        Names(),
        form="names, separated by commas",
        help="models to load, plus the parts of ensembles; none: the default model, or all if "
        "there is no default",
    )
    ping_mode: str = _choice(
        "SAGEMAKER_TRITON_OVERRIDE_PING_MODE SAGEMAKER_TRITON_PING_MODE",
        "auto",
        "ready",
        "live",
        help="what /ping checks. ready: each model has answered its example since Triton started; "
        "live: Triton is live; auto: live in multi-model and on-demand mode, else ready",
    )
    inference_type: str = _choice(
        "SAGEMAKER_TRITON_INFERENCE_TYPE",
        "infer",
        "generate",
        "generate_stream",
        help="how /invocations answers a flat JSON body",
    )
    model_clients: bool = _setting(
        "SERVE_MODEL_CLIENTS", True, help="whether model repositories may contain clients"
    )
    device: str = _choice(
        "SERVE_DEVICE",
        "auto",
        "cpu",
        "gpu",
        help="where models run; auto: on a GPU if there is one",
    )
    cpu_engine: str = _choice(
        "SERVE_CPU_ENGINE",
        "auto",
        "onnxruntime",
        "openvino",
        help="engine that runs ONNX models on the processor, unless config.pbtxt chooses one; "
        "auto: OpenVINO if the processor has BF16 and the model allows it, else ONNX Runtime",
    )
    request_timeout: float = _setting(
        "SERVE_REQUEST_TIMEOUT SAGEMAKER_MODEL_SERVER_TIMEOUT MODEL_SERVER_TIMEOUT",
        60.0,
        minimum=1,
        maximum=3600,
        help="seconds until a caller gets 504; at least 480 for a stream",
    )
    multi_model: bool = _setting(
        "SAGEMAKER_MULTI_MODEL",
        False,
        help="whether POST /models loads archives, and DELETE /models/NAME unloads them",
    )
    namespaces: bool = _setting(
        "SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING",
        True,
        help="despite its name, true prefixes the names of an archive's parts in Triton "
        "(TARGET__PART); false lets a Python model call another by its plain name",
    )
    model_memory_share: float = _setting(
        "SERVE_MODEL_MEMORY_SHARE",
        0.8,
        minimum=0,
        maximum=1,
        help="share of the memory that Triton and the loaded models may take; a load that would "
        "exceed it gets 507",
    )
    request_memory_share: float = _setting(
        "SERVE_REQUEST_MEMORY_SHARE",
        0.125,
        minimum=0,
        maximum=1,
        help="share of the memory that requests in flight may take; at least 32 times "
        "SERVE_MAX_BODY_MB",
    )
    start_timeout: float = _setting(
        "SERVE_START_TIMEOUT", 300.0, minimum=1, maximum=86400, help="seconds that startup may take"
    )
    stop_timeout: float = _setting(
        "SERVE_STOP_TIMEOUT",
        25.0,
        minimum=0,
        maximum=3600,
        help="seconds until a stop kills processes that are still running",
    )
    hang_timeout: float = _setting(
        "SERVE_HANG_TIMEOUT",
        15.0,
        minimum=0,
        maximum=3600,
        help="seconds until a process that hangs is restarted; 0: never",
    )
    max_body_mb: float = _setting(
        "SERVE_MAX_BODY_MB",
        25.0,
        minimum=0,
        maximum=LARGEST_BODY,
        help="largest request body in MB; 0: 1024",
    )
    batch: bool = _setting(
        "SAGEMAKER_BATCH",
        False,
        help="set by batch transform, whose requests may take 600 s by default",
    )
    batch_payload_mb: int = _setting(
        "SAGEMAKER_MAX_PAYLOAD_IN_MB",
        -1,
        minimum=-1,
        maximum=100,
        help="largest batch transform request in MB; 0: any size, in chunks; -1: 6, or less if "
        "other settings require it",
    )
    batch_concurrency: int = _setting(
        "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS",
        0,
        minimum=0,
        maximum=65536,
        help="concurrent batch transform requests; 0: two per worker, or fewer if they "
        "would exceed 100 MB",
    )
    batch_strategy: str = _choice(
        "SAGEMAKER_BATCH_STRATEGY",
        "MULTI_RECORD",
        "SINGLE_RECORD",
        help="whether batch transform sends many lines in a request, or one",
    )
    workers: int = _setting(
        "SERVE_WORKERS SAGEMAKER_MODEL_SERVER_WORKERS MODEL_SERVER_WORKERS",
        0,
        minimum=0,
        maximum=256,
        help="number of gunicorn's workers, and of further workers for bodies in gzip or of at "
        "least 500 kB; 0: one per processor, at most 16 and one per 500 MB of memory",
    )
    inference_threads: int = _setting(
        "SERVE_INFERENCE_THREADS",
        0,
        minimum=0,
        maximum=1024,
        help="threads of one model instance; 0: one per processor",
    )
    max_concurrency: int = _setting(
        "SERVE_MAX_CONCURRENCY",
        0,
        minimum=0,
        maximum=65536,
        help="requests in flight; more get 503. 0: 64 per worker, at least 128 and at most 1024",
    )
    log_level: str = _setting(
        "SERVE_LOG_LEVEL SAGEMAKER_CONTAINER_LOG_LEVEL",
        "info",
        choices=tuple(LOG_LEVELS),
        parser=parse_log_level,
        help="lowest level that is logged, by name or number",
    )
    management_secret: str = _setting(
        "SERVE_MANAGEMENT_SECRET",
        "",
        secret=True,
        form="HEADER=VALUE",
        parser=parse_header_secret,
        help="header that requests to load, unload or list models need",
    )
    kserve: str = _switch(
        "SERVE_KSERVE",
        "auto",
        "true",
        "false",
        "trusted",
        help="whether the /v2 routes are reachable. auto: true unless a SAGEMAKER_ variable is "
        "set; trusted: infer calls go to Triton unchecked (docs/security.md)",
    )
    doors: bool = _setting("SERVE_DOORS", True, help="whether other servers' APIs are reachable")
    page: str = _switch(
        "SERVE_PAGE",
        "false",
        "auto",
        "true",
        help="whether / serves a page to try the models, and /docs the API's documentation; "
        "auto: true unless a SAGEMAKER_ variable is set",
    )
    reload: str = _switch(
        "SERVE_RELOAD",
        "false",
        "auto",
        "true",
        help="whether changed, added and removed models take effect without a restart; "
        "auto: true unless multi-model, on-demand or SERVE_KSERVE=trusted",
    )
    models: str = _choice(
        "SERVE_MODELS",
        "auto",
        "on-demand",
        help="when models are loaded. on-demand: on their first call (docs/on-demand.md); auto: at "
        "startup, unless SERVE_RELOAD or SAGEMAKER_MULTI_MODEL is true",
    )
    unpacked_mb: int = _setting(
        "SERVE_UNPACKED_MB",
        0,
        minimum=0,
        maximum=2**30,
        help="MB of disk in SERVE_RUN_DIR for unpacked archives and models from a bucket in "
        "on-demand mode; 0: half of the free space",
    )
    cloudwatch: bool = _setting(
        "SAGEMAKER_TRITON_PUBLISH_METRICS_TO_CLOUDWATCH",
        False,
        help="whether the CloudWatch agent, if installed, publishes /metrics",
    )
    cloudwatch_log_group: str = _setting(
        "SAGEMAKER_TRITON_CLOUDWATCH_LOG_GROUP",
        "/aws/sagemaker/triton",
        help="CloudWatch's log group for the metrics",
    )
    cloudwatch_namespace: str = _setting(
        "SAGEMAKER_TRITON_CLOUDWATCH_METRIC_NAMESPACE",
        "/aws/sagemaker/triton",
        help="CloudWatch's namespace for the metrics",
    )
    run_dir: Path = _setting(  # noqa: RUF009
        "SERVE_RUN_DIR",
        AUTO,
        help="folder for sockets and temporary files; auto: a new one, removed on exit",
    )
    allow_grpc: bool = _setting(
        "SAGEMAKER_TRITON_ALLOW_GRPC",
        False,
        help="whether Triton's gRPC (inference and read-only queries) is public",
    )
    grpc_port: int = _setting(
        "SAGEMAKER_TRITON_GRPC_PORT",
        8001,
        minimum=1,
        maximum=65535,
        help="public port of Triton's gRPC",
    )
    allow_metrics: bool = _setting(
        "SAGEMAKER_TRITON_ALLOW_METRICS", False, help="whether Triton's own metrics are public"
    )
    metrics_port: int = _setting(
        "SAGEMAKER_TRITON_METRICS_PORT",
        8002,
        minimum=1,
        maximum=65535,
        help="public port of these metrics",
    )
    thread_count: int = _setting(
        "SAGEMAKER_TRITON_THREAD_COUNT",
        8,
        minimum=1,
        maximum=1024,
        help="threads of Triton's HTTP endpoint",
    )
    buffer_manager_thread_count: int = _setting(
        "SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT",
        0,
        minimum=0,
        maximum=1024,
        help="threads with which Triton copies tensors",
    )
    log_verbose: int = _setting(
        "SAGEMAKER_TRITON_LOG_VERBOSE",
        0,
        minimum=0,
        maximum=9,
        form="true, false or a level",
        parser=lambda text: int(BOOLEANS.get(text.lower(), str(text))),
        help="how much Triton logs about each request",
    )
    log_info: str = _switch(
        "SAGEMAKER_TRITON_LOG_INFO",
        "auto",
        "true",
        "false",
        help="whether Triton logs at level info; auto: follows SERVE_LOG_LEVEL",
    )
    log_warning: str = _switch(
        "SAGEMAKER_TRITON_LOG_WARNING",
        "auto",
        "true",
        "false",
        help="whether Triton logs warnings; auto: follows SERVE_LOG_LEVEL",
    )
    log_error: bool = _setting(
        "SAGEMAKER_TRITON_LOG_ERROR", True, help="whether Triton logs errors"
    )
    shm_default_byte_size: int = _setting(
        "SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE",
        MEGABYTE,
        minimum=MEGABYTE,
        maximum=2**36,
        help="bytes of /dev/shm that each instance of a Python-based backend initially takes",
    )
    shm_growth_byte_size: int = _setting(
        "SAGEMAKER_TRITON_SHM_GROWTH_BYTE_SIZE",
        MEGABYTE,
        minimum=4096,
        maximum=2**36,
        help="bytes that are added whenever this memory is full",
    )
    tensorflow_version: int = _setting(
        "SAGEMAKER_TRITON_TENSORFLOW_VERSION",
        2,
        minimum=1,
        maximum=2,
        help="version for Triton's TensorFlow backend, which NVIDIA dropped after 25.02",
    )
    model_load_gpu_limit: float = _setting(
        "SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT",
        0.0,
        minimum=0,
        maximum=1,
        help="share of a GPU's memory above which no model is loaded; 0: no limit",
    )
    additional_arguments: tuple[str, ...] = _setting(
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS",
        (),
        parser=lambda text: tuple(shlex.split(text)),
        formatter=shlex.join,
        form="options, quoted as for a shell",
        help="further options for tritonserver; if one is repeated, the last counts",
    )

    # Files in the run folder:

    # Triton's model repository, with a folder for each model (serving/repository/staging.py)
    staged_folder = _File("models")
    unpacked_folder = _File("unpacked")  # on-demand models (serving/repository/cache.py)
    # copies of watched model folders (serving/model_lifecycle/on_change.py)
    copies_folder = _File("copies")
    models_file = _File("models.json")  # the state of each model (serving/model_status/models.py)
    leases_file = _File("leases")  # counts of the calls in flight
    # the status of the processes (serving/host/files.py)
    status_file = _File("status.json")
    manager_socket = _File("manager.sock")  # where the model manager serves HTTP
    deaths_socket = _File("deaths.sock")  # where workers report that a model's process has died
    gunicorn_socket = _File("gunicorn.sock")
    large_socket = _File("gunicorn-large.sock")  # for large and compressed bodies (nginx.conf)
    # tritonserver listens on sockets in a folder that only the container's user may enter. So it
    # needs no secret: processes of other users, sidecars and browsers can reach it only through
    # nginx.
    triton_folder = _File("triton")
    triton_http = _File("triton/http.sock")
    triton_grpc = _File(f"triton/grpc.sock:{GRPC_PORT}")
    triton_metrics = _File("triton/metrics.sock")
    # contains the random prefix of the names of this server's files in /dev/shm
    shared_memory_file = _File("triton/shared-memory")

    @classmethod
    def from_env(cls, environ: Mapping[str, str], machine: Machine | None = None) -> "Settings":
        """Read the settings from the variables in `environ`, check them, and replace most values
        "auto" and 0 by the values that they stand for. Raise a SettingsError that lists all invalid
        values or, if there are none, all contradictions."""
        values: dict[str, Any] = {}
        mistakes: list[str] = []
        for setting in SETTINGS:
            try:
                values[setting.name] = setting.read(environ)
            except ValueError as err:
                mistakes.append(str(err))
        if mistakes:
            raise SettingsError(mistakes)
        settings = cls(**values)
        if mistakes := list(contradictions(settings)):
            raise SettingsError(mistakes)
        settings = _with_platform_defaults(settings, environ)
        return settings._with_machine_defaults(machine or this_machine())

    def _with_machine_defaults(self, machine: Machine) -> "Settings":
        """Return these settings with most 0 and auto replaced by values that depend on processors,
        memory, GPUs or other settings. Make the repositories' paths absolute, because child
        processes run in another folder. Except in multi-model mode, keep an auto for the model
        repository, which final_folders in serving/repository/layout.py replaces."""
        processors = math.ceil(machine.cpus)
        fitting = min(processors, machine.memory // MEMORY_PER_WORKER, MOST_DEFAULT_WORKERS)
        workers = self.workers or max(1, fitting)
        repositories = self.model_repositories
        if self.multi_model and repositories == (AUTO,):
            repositories = (ARCHIVES,)
        elif not self.bucket:
            repositories = tuple(path if path == AUTO else path.absolute() for path in repositories)
        device = "gpu" if machine.gpu else "cpu"
        health = "live" if self.policy.by_call else "ready"
        if 0 in (self.max_body_mb, self.batch_payload_mb):  # one of them allows bodies of any size
            largest = LARGEST_BODY
        else:  # batch transform's payload must fit
            largest = max(self.max_body_mb, float(self.batch_payload_mb))
        return replace(
            self,
            model_repositories=repositories,
            ping_mode=self.ping_mode.replace("auto", health),
            device=self.device.replace("auto", device),
            max_body_mb=largest,
            workers=workers,
            inference_threads=self.inference_threads or max(1, math.floor(machine.cpus)),
            max_concurrency=self.max_concurrency or min(1024, max(128, 64 * workers)),
            log_info=self.log_info.replace("auto", format_value(self.logs("info"))),
            log_warning=self.log_warning.replace("auto", format_value(self.logs("warning"))),
        )

    def environment(self) -> dict[str, str]:
        """Return environment variables from which a child process reads the same Settings."""
        return {
            setting.variables[0]: setting.formatter(getattr(self, setting.name))
            for setting in SETTINGS
        }

    def logs(self, level: str) -> bool:
        """Return whether lines at this level are logged."""
        return LOG_LEVELS[self.log_level] <= LOG_LEVELS[level]

    @property
    def threads(self) -> int:
        """Return the number of threads per worker: one more than the worker's share of
        SERVE_MAX_CONCURRENCY, so that threads for /ping are left when that limit is reached."""
        return math.ceil(self.max_concurrency / self.workers) + 1

    @property
    def all_workers(self) -> int:
        """Return the number of gunicorn's workers. Half of them answer only requests with large or
        compressed bodies (nginx.conf), because while a thread parses a body of 25 MB, all other
        threads of its worker wait for up to 0.2 s. An idle worker takes 3 MB of memory."""
        return 2 * self.workers

    @property
    def large_connections(self) -> int:
        """Return how many requests each of the workers for large bodies accepts at a time. Further
        requests with large bodies wait for a connection. Together, these workers leave a quarter of
        SERVE_MAX_CONCURRENCY to requests with small bodies, unless SERVE_MAX_CONCURRENCY is so low
        that each accepts only one."""
        return max(1, LARGE_PERCENT * self.max_concurrency // (100 * self.workers))

    @property
    def ports(self) -> dict[str, int]:
        """Return the public ports, keyed by the variables that set them."""
        ports = {"SAGEMAKER_BIND_TO_PORT": self.port}
        if self.allow_grpc:
            ports["SAGEMAKER_TRITON_GRPC_PORT"] = self.grpc_port
        if self.allow_metrics:
            ports["SAGEMAKER_TRITON_METRICS_PORT"] = self.metrics_port
        return ports

    @property
    def several_models(self) -> bool:
        """Return whether several models may be served, so that calls to one that hangs must leave
        slots for the others."""
        return self.policy != AT_START or len(self.load_models) > 1

    @property
    def policy(self) -> LoadPolicy:
        """Return the policy that decides when models are loaded."""
        if self.models == ON_DEMAND.name:
            return ON_DEMAND
        if self.multi_model:
            return ON_POST
        return ON_CHANGE if self.reload == "true" else AT_START

    @property
    def bucket(self) -> str:
        """Return the URL of the bucket that contains the models, or "" if folders do."""
        return bucket_url(self.model_repositories[0])

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * MEGABYTE)

    @property
    def request_memory(self) -> int:
        """Return how many bytes of memory all requests in flight may take in gunicorn: a share of
        the container's memory, but at least BODIES times the maximum size of a body."""
        share = int(self.request_memory_share * memory_limit())
        return max(BODIES * self.max_body_bytes, share)

    @property
    def execution_parameters(self) -> dict[str, int | str]:
        """Return the parameters that batch transform uses if its job does not set them (GET
        /execution-parameters)."""
        payload = self.batch_payload_mb
        concurrency = self.batch_concurrency
        if payload < 0:
            share = BATCH_MEGABYTES // max(1, concurrency)
            payload = max(1, min(DEFAULT_PAYLOAD, int(self.max_body_mb), share))
        if not concurrency:
            most = BATCH_MEGABYTES // max(1, payload)
            concurrency = max(1, min(2 * self.workers, self.max_concurrency, most))
        return {
            "MaxConcurrentTransforms": concurrency,
            "BatchStrategy": self.batch_strategy,
            "MaxPayloadInMB": payload,
        }

    @property
    def stream_timeout(self) -> float:
        """Return how many seconds a stream of responses may last."""
        return max(LONGEST_STREAM, self.request_timeout)

    @property
    def grpc_timeout(self) -> float:
        """Return the time limit of a call to Triton in seconds. It is shorter than nginx's time
        limit, so that the Flask app can still reply that Triton was late."""
        return 0.9 * self.request_timeout

    @property
    def most_workers(self) -> int:
        """Return an ample limit for how many workers gunicorn has at once, including old workers
        that have not ended yet. Each needs its own row of counters (Leases)."""
        return 4 * self.all_workers + 1


SETTINGS = tuple(Setting(name=column.name, **column.metadata) for column in fields(Settings))
# The variables that contain secrets. They are hidden from the code of models.
SECRETS = set(chain.from_iterable(setting.variables for setting in SETTINGS if setting.secret))


def contradictions(settings: Settings) -> Iterator[str]:
    """Yield an error message for each contradiction between settings."""
    yield from _contradictions_of_ports(settings)
    yield from _contradictions_of_arguments(settings)
    payload = settings.batch_payload_mb
    concurrency = settings.batch_concurrency
    if payload * concurrency > BATCH_MEGABYTES:
        yield (
            f"SAGEMAKER_MAX_CONCURRENT_TRANSFORMS={concurrency} times "
            f"SAGEMAKER_MAX_PAYLOAD_IN_MB={payload} is more than the {BATCH_MEGABYTES} MB that "
            "batch transform sends at once"
        )
    for first, second in combinations(_exclusive_modes(settings), 2):
        yield f"{first} does not work with {second}: leave one of them out"
    is_on_demand = settings.models == ON_DEMAND.name
    if is_on_demand and len(settings.model_repositories) > 1:
        yield (
            "SERVE_MODELS=on-demand does not work with several folders in SERVE_MODEL_REPOSITORY: "
            "name one"
        )
    if settings.bucket and not is_on_demand:
        yield f"SERVE_MODEL_REPOSITORY={settings.bucket} needs SERVE_MODELS=on-demand: set it too"


def _contradictions_of_ports(settings: Settings) -> Iterator[str]:
    """Yield an error message for each port except SAGEMAKER_BIND_TO_PORT that is outside
    SAGEMAKER_SAFE_PORT_RANGE, and for each pair of equal ports."""
    if settings.safe_port_range:
        low, high = settings.safe_port_range
        for name, port in settings.ports.items():
            if name != "SAGEMAKER_BIND_TO_PORT" and not low <= port <= high:
                yield f"{name}={port} is outside of SAGEMAKER_SAFE_PORT_RANGE={low}-{high}"
    for (first, port), (second, second_port) in combinations(sorted(settings.ports.items()), 2):
        if port == second_port:
            yield f"{first} and {second} are both {port}: two servers cannot listen on one port"


def _contradictions_of_arguments(settings: Settings) -> Iterator[str]:
    """Yield an error message for each additional argument of tritonserver that only `serve` may
    set."""
    words = [word for word in settings.additional_arguments if word.startswith("--")]
    names = {word.removeprefix("--").partition("=")[0] for word in words}
    for name in sorted(names & _OWN_OPTIONS.keys()):
        variable = _OWN_OPTIONS[name]
        use = f": use {variable}" if variable else " by itself"
        yield f"SAGEMAKER_TRITON_ADDITIONAL_ARGS has --{name}, which serve sets{use}"


def _exclusive_modes(settings: Settings) -> list[str]:
    """Return those settings that are set and exclude each other. The first three choose different
    policies for loading models. With SERVE_KSERVE=trusted, calls go to Triton unchanged, and only
    the policy AT_START guarantees that Triton's names of the models are those that callers know."""
    modes = {
        "SERVE_RELOAD=true": settings.reload == "true",
        "SAGEMAKER_MULTI_MODEL=true": settings.multi_model,
        "SERVE_MODELS=on-demand": settings.models == ON_DEMAND.name,
        "SERVE_KSERVE=trusted": settings.kserve == "trusted",
    }
    return [mode for mode, is_set in modes.items() if is_set]


def _with_platform_defaults(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Return the settings with each auto of SERVE_KSERVE, SERVE_PAGE and SERVE_RELOAD replaced. In
    batch transform, also replace the request timeout if no variable sets it."""
    variables = {name for name, value in environ.items() if value.strip()}
    on_sagemaker = any(name.startswith("SAGEMAKER_") for name in variables)
    # the values that replace auto: "true" or "false"
    is_open = format_value(not on_sagemaker)
    reloads = format_value(not _exclusive_modes(settings))
    timeout = settings.request_timeout
    (row,) = (setting for setting in SETTINGS if setting.name == "request_timeout")
    if settings.batch and variables.isdisjoint(row.variables):
        timeout = BATCH_TIMEOUT
    return replace(
        settings,
        kserve=settings.kserve.replace("auto", is_open),
        page=settings.page.replace("auto", is_open),
        reload=settings.reload.replace("auto", reloads),
        request_timeout=timeout,
    )
