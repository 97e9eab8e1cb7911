"""Every setting, in one table: variable, type, default, help. Read once, every mistake reported together.

`Settings.from_env(os.environ)` also settles what is left to "auto" (0, or the word), so that a Settings
holds final values; `serve` adds the repositories, the ports and the folder that it picked, and hands
`settings.environment()` on to its children, which read the same Settings from it.
"""

import hashlib
import math
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from serving.host.machine import Machine, this_machine
from serving.settings import forms
from serving.settings.contradictions import BATCH_MEGABYTES, contradictions
from serving.settings.row import (
    AUTO,
    LOG_LEVELS,
    Setting,
    SettingsError,
    format_value,
    parse_header_secret,
    parse_log_level,
)

CLOUDWATCH_AGENT = Path("/opt/aws/amazon-cloudwatch-agent/bin/start-amazon-cloudwatch-agent")
ENGINE_CACHE = Path("/tmp/serve-engines")
LOOPBACK = "127.0.0.1"
SECRET_KEY = "serve"  # of the header with SERVE_TRITON_SECRET
MEGABYTE = 1024 * 1024
MEMORY_PER_WORKER = 500 * MEGABYTE
DEFAULT_PAYLOAD = 6  # MB, batch transform's own
BATCH_TIMEOUT = 600.0  # seconds, batch transform's InvocationsTimeoutInSeconds where a job sets none


def _setting(*variables: str, **row: Any) -> Any:
    return field(default=row["default"], metadata={"variables": variables, **row})


@dataclass(frozen=True)
class Settings:
    """The table's values. Timeouts are in seconds, sizes in MB of 1024*1024 bytes."""

    port: int = _setting(
        "SAGEMAKER_BIND_TO_PORT", "PORT", default=8080, minimum=1, maximum=65535, help="port that nginx listens on"
    )
    host: str = _setting("SERVE_HOST", default="0.0.0.0", help="address that nginx listens on")
    safe_port_range: tuple[int, ...] = _setting(
        "SAGEMAKER_SAFE_PORT_RANGE",
        default=(),
        parser=forms.parse_port_range,
        formatter=forms.format_port_range,
        form="LOW-HIGH, two ports",
        help="every other port that is listened on lies in it, LOW and HIGH included",
    )
    model_repositories: tuple[Path, ...] = _setting(
        "SERVE_MODEL_REPOSITORY",
        default=(AUTO,),
        parser=forms.parse_paths,
        formatter=forms.format_paths,
        form="a folder, or several with : between them",
        help="folders of the model folders, one over another; auto: /opt/ml/model when it holds models, else "
        "the built-in model_repository",
    )
    default_model: str = _setting(
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
        default="",
        help="model of the requests that name none; no other is loaded but it and what its ensemble calls",
    )
    load_models: tuple[str, ...] = _setting(
        "SERVE_LOAD_MODELS",
        default=(),
        parser=forms.parse_names,
        formatter=",".join,
        form="names with , between them",
        help="models that are loaded, and what their ensembles call; without it the default model alone, without "
        "that one all",
    )
    ping_mode: str = _setting(
        "SAGEMAKER_TRITON_OVERRIDE_PING_MODE",
        "SAGEMAKER_TRITON_PING_MODE",
        default="auto",
        choices=("auto", "ready", "live"),
        help="what /ping asks. ready: every model answers its example; live: Triton lives; auto: live in "
        "multi-model mode, else ready",
    )
    inference_type: str = _setting(
        "SAGEMAKER_TRITON_INFERENCE_TYPE",
        default="infer",
        choices=("infer", "generate", "generate_stream"),
        help="what a flat JSON body of /invocations asks for; the other bodies are served as with infer",
    )
    model_clients: bool = _setting(
        "SERVE_MODEL_CLIENTS", default=True, help="a model folder's own client.py is loaded; false: ignored"
    )
    device: str = _setting(
        "SERVE_DEVICE",
        default="auto",
        choices=("auto", "cpu", "gpu"),
        help="which of a model's configurations Triton takes; auto: gpu where one is found",
    )
    tensorrt: str = _setting(
        "SERVE_TENSORRT",
        default="auto",
        choices=("auto", "rebuild", "onnxruntime", "onnxruntime_tensorrt", "off"),
        help="what becomes of a TensorRT plan that is missing or was built for another GPU or TensorRT, where its ONNX "
        "file lies beside it. rebuild: it is built again, or the start fails; onnxruntime, onnxruntime_tensorrt: ONNX "
        "Runtime serves that file, with its CUDA or TensorRT provider; auto: rebuild, within three quarters of "
        "SERVE_START_TIMEOUT, else onnxruntime; off: it is served as it is",
    )
    engine_cache: Path = _setting(  # noqa: RUF009
        "SERVE_ENGINE_CACHE",
        default=ENGINE_CACHE,
        help="folder of the TensorRT plans that were built at a start, for the next one",
    )
    request_timeout: float = _setting(
        "SERVE_REQUEST_TIMEOUT",
        "SAGEMAKER_MODEL_SERVER_TIMEOUT",
        "MODEL_SERVER_TIMEOUT",
        default=60.0,
        minimum=1,
        maximum=3600,
        help="seconds after which a caller gets 504 at the latest",
    )
    stream_timeout: float = _setting(
        "SERVE_STREAM_TIMEOUT",
        default=480.0,
        minimum=1,
        maximum=86400,
        help="seconds that a stream of responses may last",
    )
    multi_model: bool = _setting(
        "SAGEMAKER_MULTI_MODEL",
        default=False,
        help="models come as archives that POST /models loads and DELETE /models/NAME unloads",
    )
    models_root: Path = _setting(  # noqa: RUF009
        "SERVE_MODELS_ROOT",
        default=Path("/opt/ml/models"),
        help="folder of the archives, ID/model each; no other is taken in multi-model mode",
    )
    model_namespacing: bool = _setting(
        "SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING",
        default=True,
        help="value of Triton's --model-namespacing in multi-model mode (the variable's name says the opposite); "
        "true: archives may hold models of the same name",
    )
    model_memory_share: float = _setting(
        "SERVE_MODEL_MEMORY_SHARE",
        default=0.8,
        minimum=0,
        maximum=1,
        help="share of the container's memory that Triton and the loaded models may take in multi-model mode; a load "
        "beyond it is answered 507",
    )
    load_timeout: float = _setting(
        "SERVE_LOAD_TIMEOUT",
        default=350.0,
        minimum=1,
        maximum=86400,
        help="seconds that a load or an unload may take in multi-model mode",
    )
    start_timeout: float = _setting(
        "SERVE_START_TIMEOUT",
        default=300.0,
        minimum=1,
        maximum=86400,
        help="seconds that a start may take until everything is ready",
    )
    stop_timeout: float = _setting(
        "SERVE_STOP_TIMEOUT",
        default=25.0,
        minimum=0,
        maximum=3600,
        help="seconds that a stop may take until what is left is killed",
    )
    max_body_mb: float = _setting(
        "SERVE_MAX_BODY_MB",
        default=25.0,
        minimum=0,
        maximum=1024,
        help="largest request body in MB (1024*1024 bytes); 0: 1024; never less than SAGEMAKER_MAX_PAYLOAD_IN_MB",
    )
    batch: bool = _setting(
        "SAGEMAKER_BATCH",
        default=False,
        help="set by batch transform; SERVE_REQUEST_TIMEOUT, where it is not set, is 600 then, as long as it waits",
    )
    batch_payload_mb: int = _setting(
        "SAGEMAKER_MAX_PAYLOAD_IN_MB",
        default=-1,
        minimum=-1,
        maximum=100,
        help="what /execution-parameters tells batch transform to send at a time, in MB; 0: any, in chunks; "
        "-1: 6, or as much as SERVE_MAX_BODY_MB and SAGEMAKER_MAX_CONCURRENT_TRANSFORMS leave",
    )
    batch_concurrency: int = _setting(
        "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS",
        default=0,
        minimum=0,
        maximum=65536,
        help="how many requests /execution-parameters tells batch transform to send at once; 0: two per worker, so "
        "that with their payload they are no more than 100 MB",
    )
    batch_strategy: str = _setting(
        "SAGEMAKER_BATCH_STRATEGY",
        default="MULTI_RECORD",
        choices=("MULTI_RECORD", "SINGLE_RECORD"),
        help="whether /execution-parameters tells batch transform to send many lines in a request, or one",
    )
    reduced_decoding: bool = _setting(
        "SERVE_REDUCED_DECODING",
        default=True,
        help="large JPEGs are decoded at 1/2, 1/4 or 1/8 where the model's input is much smaller (clients that say so)",
    )
    max_image_pixels: int = _setting(
        "SERVE_MAX_IMAGE_PIXELS",
        default=89_000_000,
        minimum=1,
        maximum=2**31,
        help="an image with more pixels is refused before it is decoded",
    )
    workers: int = _setting(
        "SERVE_WORKERS",
        "SAGEMAKER_MODEL_SERVER_WORKERS",
        "MODEL_SERVER_WORKERS",
        default=0,
        minimum=0,
        maximum=256,
        help="gunicorn's worker processes; 0: one per processor, as far as memory goes (500 MB each), at most 16",
    )
    threads: int = _setting(
        "SERVE_THREADS",
        default=0,
        minimum=0,
        maximum=4096,
        help="threads of each worker; 0: as many as SERVE_MAX_CONCURRENCY asks for, and one for /ping",
    )
    nginx_workers: int = _setting(
        "SERVE_NGINX_WORKERS",
        default=0,
        minimum=0,
        maximum=256,
        help="nginx's worker processes; 0: one per processor, at most 4",
    )
    inference_threads: int = _setting(
        "SERVE_INFERENCE_THREADS",
        default=0,
        minimum=0,
        maximum=1024,
        help="threads of one model instance; 0: one per processor",
    )
    max_concurrency: int = _setting(
        "SERVE_MAX_CONCURRENCY",
        default=0,
        minimum=0,
        maximum=65536,
        help="requests in work at once, more are answered 503; 0: 64 per worker, from 128 to 1024; never more than the "
        "threads can hold",
    )
    log_level: str = _setting(
        "SERVE_LOG_LEVEL",
        "SAGEMAKER_CONTAINER_LOG_LEVEL",
        default="info",
        choices=tuple(LOG_LEVELS),
        parser=parse_log_level,
        help="how much is logged, by name or by number (20)",
    )
    management: str = _setting(
        "SERVE_MANAGEMENT",
        default="open",
        choices=("open", "loopback", "secret"),
        help="who may load, unload and list models: everybody (SageMaker itself must), callers from the "
        "container's own loopback, or those who send the secret",
    )
    management_secret: str = _setting(
        "SERVE_MANAGEMENT_SECRET",
        default="",
        parser=parse_header_secret,
        form="HEADER=VALUE",
        secret=True,
        help="the header, and its value, that SERVE_MANAGEMENT=secret asks for",
    )
    direct_tensors: bool = _setting(
        "SERVE_DIRECT_TENSORS", default=True, help="nginx hands tensors whose headers say all on to Triton, past Python"
    )
    kserve: str = _setting(
        "SERVE_KSERVE",
        default="auto",
        choices=("auto", "true", "false"),
        parser=str.lower,
        help="whether Triton's own /v2 routes (KServe v2: health, metadata, statistics, infer, generate) are reachable "
        "on the port; auto: when no variable is set whose name begins with SAGEMAKER_",
    )
    cloudwatch: bool = _setting(
        "SAGEMAKER_TRITON_PUBLISH_METRICS_TO_CLOUDWATCH",
        default=False,
        help="/metrics is published to CloudWatch, by the CloudWatch agent that the image must have",
    )
    cloudwatch_log_group: str = _setting(
        "SAGEMAKER_TRITON_CLOUDWATCH_LOG_GROUP",
        default="/aws/sagemaker/triton",
        help="CloudWatch's log group that the metrics go through",
    )
    cloudwatch_namespace: str = _setting(
        "SAGEMAKER_TRITON_CLOUDWATCH_METRIC_NAMESPACE",
        default="/aws/sagemaker/triton",
        help="CloudWatch's namespace of the metrics",
    )
    cloudwatch_agent: Path = _setting(  # noqa: RUF009
        "SERVE_CLOUDWATCH_AGENT", default=CLOUDWATCH_AGENT, help="the CloudWatch agent's program"
    )
    run_dir: Path = _setting(  # noqa: RUF009
        "SERVE_RUN_DIR",
        default=AUTO,
        help="folder of sockets, rendered configuration and temporary files; auto: a fresh one, removed at the end",
    )
    allow_grpc: bool = _setting(
        "SAGEMAKER_TRITON_ALLOW_GRPC",
        default=False,
        help="Triton's gRPC can be reached from outside: it listens on SERVE_HOST and the port below",
    )
    grpc_port: int = _setting(
        "SAGEMAKER_TRITON_GRPC_PORT",
        default=8001,
        minimum=1,
        maximum=65535,
        help="Triton's gRPC port where SAGEMAKER_TRITON_ALLOW_GRPC is true",
    )
    triton_secret: str = _setting(
        "SERVE_TRITON_SECRET",
        default="",
        parser=forms.parse_token,
        form="letters and digits",
        secret=True,
        help=f"what calls of that gRPC must show in the header triton-grpc-protocol-{SECRET_KEY} to manage models, "
        "shared memory, traces or logs; without it a random one, so that nobody can",
    )
    allow_metrics: bool = _setting(
        "SAGEMAKER_TRITON_ALLOW_METRICS",
        default=False,
        help="Triton's own metrics can be reached from outside: they are on SERVE_HOST and the port below, "
        "besides /metrics",
    )
    metrics_port: int = _setting(
        "SAGEMAKER_TRITON_METRICS_PORT",
        default=8002,
        minimum=1,
        maximum=65535,
        help="Triton's metrics port where SAGEMAKER_TRITON_ALLOW_METRICS is true",
    )
    triton_threads: int = _setting(
        "SAGEMAKER_TRITON_THREAD_COUNT", default=8, minimum=1, maximum=1024, help="threads of Triton's HTTP endpoint"
    )
    buffer_manager_threads: int = _setting(
        "SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT",
        default=0,
        minimum=0,
        maximum=1024,
        help="threads with which Triton copies tensors",
    )
    log_verbose: int = _setting(
        "SAGEMAKER_TRITON_LOG_VERBOSE",
        default=0,
        minimum=0,
        maximum=9,
        parser=forms.parse_verbosity,
        form="true, false or a level",
        help="Triton's verbose log, many lines per request",
    )
    log_info: str = _setting(
        "SAGEMAKER_TRITON_LOG_INFO",
        default="auto",
        parser=forms.parse_switch,
        choices=("true", "false", "auto"),
        help="Triton's log of what it does; auto: as SERVE_LOG_LEVEL says",
    )
    log_warning: str = _setting(
        "SAGEMAKER_TRITON_LOG_WARNING",
        default="auto",
        parser=forms.parse_switch,
        choices=("true", "false", "auto"),
        help="Triton's log of warnings; auto: as SERVE_LOG_LEVEL says",
    )
    log_error: bool = _setting("SAGEMAKER_TRITON_LOG_ERROR", default=True, help="Triton's log of errors")
    shm_default_bytes: int = _setting(
        "SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE",
        default=MEGABYTE,
        minimum=MEGABYTE,
        maximum=2**36,
        help="bytes of /dev/shm that an instance of a Python-based backend takes at its start (16777216 in "
        "NVIDIA's image)",
    )
    shm_growth_bytes: int = _setting(
        "SAGEMAKER_TRITON_SHM_GROWTH_BYTE_SIZE",
        default=MEGABYTE,
        minimum=4096,
        maximum=2**36,
        help="bytes by which that grows",
    )
    tensorflow_version: int = _setting(
        "SAGEMAKER_TRITON_TENSORFLOW_VERSION",
        default=2,
        minimum=1,
        maximum=2,
        help="TensorFlow of Triton's C++ backend, where Triton has one (up to 25.02)",
    )
    model_load_gpu_limit: float = _setting(
        "SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT",
        default=0.0,
        minimum=0,
        maximum=1,
        help="share of each GPU's memory above which no model is loaded any more; 0: no limit",
    )
    additional_arguments: tuple[str, ...] = _setting(
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS",
        default=(),
        parser=forms.parse_arguments,
        formatter=shlex.join,
        form="tritonserver's options, quoted as for a shell",
        help="added to tritonserver's command line, where the last option of a name counts",
    )
    triton_http_port: int = _setting(
        "SERVE_TRITON_HTTP_PORT",
        default=0,
        minimum=0,
        maximum=65535,
        help="Triton's HTTP port on 127.0.0.1; 0: a free one",
    )
    triton_grpc_port: int = _setting(
        "SERVE_TRITON_GRPC_PORT",
        default=0,
        minimum=0,
        maximum=65535,
        help="Triton's gRPC port on 127.0.0.1; 0: a free one",
    )
    triton_sagemaker_port: int = _setting(
        "SERVE_TRITON_SAGEMAKER_PORT",
        default=0,
        minimum=0,
        maximum=65535,
        help="port of Triton's SageMaker endpoint, which loads archives in multi-model mode; 0: a free one",
    )
    triton_metrics_port: int = _setting(
        "SERVE_TRITON_METRICS_PORT",
        default=0,
        minimum=0,
        maximum=65535,
        help="Triton's metrics port on 127.0.0.1; 0: a free one",
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str], machine: Machine | None = None) -> "Settings":
        """Reads, checks and settles; raises SettingsError with every mistake."""
        values: dict[str, Any] = {}
        mistakes: list[str] = []
        for setting in TABLE:
            try:
                values[setting.name] = setting.read(environ)
            except ValueError as err:
                mistakes.append(str(err))
        if mistakes := mistakes or contradictions(TABLE, values):
            raise SettingsError(mistakes)
        return cls(**values | _by_platform(values, environ)).settled(machine or this_machine())

    def settled(self, machine: Machine) -> "Settings":
        """The same with a value in place of every 0 or auto that depends on the machine. Paths are absolute, for the
        children run in another folder; an auto for the model repository stays (serving/repository/layout.py)."""
        workers = self.workers or _auto_workers(machine)
        concurrency = self.max_concurrency or min(1024, max(128, 64 * workers))
        # Every thread but one per worker may be busy with /invocations: one is always free for /ping.
        threads = max(2, self.threads or math.ceil((concurrency + workers) / workers))
        return replace(
            self,
            model_repositories=tuple(path if path == AUTO else path.absolute() for path in self.model_repositories),
            ping_mode=self.ping_mode.replace("auto", "live" if self.multi_model else "ready"),
            triton_grpc_port=self.grpc_port if self.allow_grpc else self.triton_grpc_port,
            triton_metrics_port=self.metrics_port if self.allow_metrics else self.triton_metrics_port,
            log_info=self.log_info.replace("auto", self._logs("info")),
            log_warning=self.log_warning.replace("auto", self._logs("warning")),
            device=("gpu" if machine.gpu else "cpu") if self.device == "auto" else self.device,
            max_body_mb=_largest_body(self.max_body_mb, self.batch_payload_mb),
            workers=workers,
            threads=threads,
            nginx_workers=self.nginx_workers or min(4, math.ceil(machine.cpus)),
            inference_threads=self.inference_threads or max(1, math.floor(machine.cpus)),
            max_concurrency=min(concurrency, workers * (threads - 1)),
        )

    def _logs(self, level: str) -> str:
        return format_value(LOG_LEVELS[self.log_level] <= LOG_LEVELS[level])

    def environment(self) -> dict[str, str]:
        """The variables from which a child reads these very Settings."""
        return {row.variables[0]: row.format(getattr(self, row.name)) for row in TABLE}

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * MEGABYTE)

    @property
    def execution_parameters(self) -> dict[str, int | str]:
        """What SageMaker's batch transform asks for, and takes where a job does not say it itself."""
        payload, concurrency = self.batch_payload_mb, self.batch_concurrency
        if payload < 0:
            payload = min(DEFAULT_PAYLOAD, int(self.max_body_mb) or 1, BATCH_MEGABYTES // (concurrency or 1) or 1)
        if not concurrency:
            concurrency = max(1, min(2 * self.workers, self.max_concurrency, BATCH_MEGABYTES // (payload or 1)))
        return {"MaxConcurrentTransforms": concurrency, "BatchStrategy": self.batch_strategy, "MaxPayloadInMB": payload}

    @property
    def nginx_timeout(self) -> float:
        """nginx outlasts gunicorn, gunicorn outlasts gRPC: so the innermost one that knows most answers."""
        return self.request_timeout

    @property
    def nginx_stream_timeout(self) -> float:
        """Between two parts of a stream; what bounds a stream as a whole is its gRPC call."""
        return 1.1 * self.stream_timeout

    @property
    def gunicorn_timeout(self) -> float:
        return 0.95 * self.request_timeout

    @property
    def grpc_timeout(self) -> float:
        return 0.9 * self.request_timeout

    @property
    def triton_grpc_host(self) -> str:
        """Where Triton's gRPC listens."""
        return self.host if self.allow_grpc else LOOPBACK

    @property
    def triton_metrics_host(self) -> str:
        """Where Triton's metrics are."""
        return self.host if self.allow_metrics else LOOPBACK

    @property
    def triton_grpc_address(self) -> str:
        """Where we reach Triton's gRPC."""
        return f"{_reached(self.triton_grpc_host)}:{self.triton_grpc_port}"

    @property
    def triton_metrics_address(self) -> str:
        """Where we reach Triton's metrics."""
        return f"{_reached(self.triton_metrics_host)}:{self.triton_metrics_port}"

    @property
    def shared_memory(self) -> str:
        """What the names in /dev/shm of all that serves here begin with; nobody can guess it. "" without a secret."""
        known = f"{self.run_dir}\0{self.triton_secret}\0{self.triton_grpc_port}"
        return f"serve-{hashlib.sha256(known.encode()).hexdigest()[:16]}" if self.triton_secret else ""

    @property
    def models_folder(self) -> Path:
        """What the workers know of the loaded archives (serving/multimodel/loaded.py)."""
        return self.run_dir / "models"

    @property
    def stage_file(self) -> Path:
        """What is done before tritonserver starts, in words; absent when nothing is (preparation/rebuild.py)."""
        return self.run_dir / "stage"

    @property
    def gunicorn_socket(self) -> Path:
        return self.run_dir / "gunicorn.sock"

    @property
    def direct_log(self) -> Path:
        """What nginx writes of the requests that it hands to Triton past Python."""
        return self.run_dir / "direct.log"

    @property
    def status_file(self) -> Path:
        """What the supervisor says about the processes, as JSON (serving/supervisor/supervisor.py)."""
        return self.run_dir / "status.json"


def _row(name: str, variables: tuple[str, ...], **row: Any) -> Setting:
    return Setting(name=name, variables=variables, **row)


TABLE = tuple(_row(column.name, **column.metadata) for column in fields(Settings))


def markdown() -> str:
    """The table as the README shows it."""
    rows = ["| Variable | Default | Allowed | Meaning |", "|---|---|---|---|"]
    for row in TABLE:
        names = ", ".join(f"`{variable}`" for variable in row.variables)
        default = f"`{row.format(row.default)}`" if row.format(row.default) else "none"
        rows.append(f"| {names} | {default} | {row.expected()} | {row.help} |")
    return "\n".join(rows) + "\n"


def _by_platform(values: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """What is left open and depends on who runs the container."""
    given = {name for name, value in environ.items() if value.strip()}
    sagemaker = any(name.startswith("SAGEMAKER_") for name in given)
    settled = {"kserve": values["kserve"].replace("auto", str(not sagemaker).lower())}
    times = next(row for row in TABLE if row.name == "request_timeout").variables
    return settled | ({"request_timeout": BATCH_TIMEOUT} if values["batch"] and not given & set(times) else {})


def _largest_body(megabytes: float, payload: int) -> float:
    """Batch transform's payload passes; 0 of either is as much as can be set."""
    return max(megabytes or 1024.0, float(payload)) if payload else 1024.0


def _reached(host: str) -> str:
    """What to call to reach a server that listens there."""
    return forms.bracketed({"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host))


def _auto_workers(machine: Machine) -> int:
    return max(1, min(math.ceil(machine.cpus), machine.memory // MEMORY_PER_WORKER, 16))


if __name__ == "__main__":
    sys.stdout.write(markdown())
