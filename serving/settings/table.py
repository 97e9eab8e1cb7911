"""Every setting, in one table: variable, type, default, help. Read once, every mistake reported together.

`Settings.from_env(os.environ)` also replaces every "auto" (0, or the word), so that a Settings holds only final values.
`serve` adds the repositories and its run folder and hands `settings.environment()` to its children, which read the same
Settings from it. The properties below say what lies where in the run folder.
"""

import math
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from serving.host.machine import Machine, this_machine
from serving.settings import parsing
from serving.settings.contradictions import BATCH_MEGABYTES, contradictions, obstacle_to_reload
from serving.settings.handed_on import HANDED_ON, TO_CLOUDWATCH
from serving.settings.parsing import LOG_LEVELS
from serving.settings.setting import Setting, SettingsError, row
from serving.settings.triton_sockets import TritonSockets

AUTO = Path("auto")
ENGINE_CACHE = Path("/tmp/serve-engines")
MEGABYTE = 1024 * 1024
MEMORY_PER_WORKER = 500 * MEGABYTE
DEFAULT_PAYLOAD = 6  # MB, batch transform's own
BATCH_TIMEOUT = 600.0  # seconds, batch transform's InvocationsTimeoutInSeconds where a job sets none


def _setting(variables: str, default: Any, meaning: str, **more: Any) -> Any:
    """A row; the first of the variables that is set counts."""
    return field(default=default, metadata={"variables": tuple(variables.split()), **row(default, meaning, **more)})


def _choice(variables: str, choices: tuple[str, ...], meaning: str, **more: Any) -> Any:
    """A row of one of these words; the first is the default."""
    return _setting(variables, choices[0], meaning, choices=choices, **more)


@dataclass(frozen=True)
class Settings:
    """The table's values. Timeouts are in seconds, sizes in MB of 1024*1024 bytes."""

    port: int = _setting("SAGEMAKER_BIND_TO_PORT PORT", 8080, "port that nginx listens on", within=(1, 65535))
    host: str = _setting("SERVE_HOST", "0.0.0.0", "address that nginx listens on")
    safe_port_range: tuple[int, ...] = _setting(
        "SAGEMAKER_SAFE_PORT_RANGE",
        (),
        "where the ports of gRPC and of Triton's metrics must lie, if they are open to others; LOW and HIGH included",
        parser=parsing.parse_port_range,
        formatter=parsing.format_port_range,
        form="LOW-HIGH, two ports",
    )
    model_repositories: tuple[Path, ...] = _setting(
        "SERVE_MODEL_REPOSITORY",
        (AUTO,),
        "folders of the model folders, one over another; auto: /opt/ml/model when it holds models, else the built-in "
        "model_repository",
        parser=parsing.parse_paths,
        formatter=parsing.format_paths,
        form="a folder, or several with : between them",
    )
    default_model: str = _setting(
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
        "",
        "model of requests that name none; only it and its ensemble's parts are loaded",
    )
    load_models: tuple[str, ...] = _setting(
        "SERVE_LOAD_MODELS",
        (),
        "models that are loaded, and what their ensembles call; without it the default model alone, without that one "
        "all",
        parser=parsing.parse_names,
        formatter=",".join,
        form="names with , between them",
    )
    ping_mode: str = _choice(
        "SAGEMAKER_TRITON_OVERRIDE_PING_MODE SAGEMAKER_TRITON_PING_MODE",
        ("auto", "ready", "live"),
        "what /ping asks. ready: every model answers its example; live: Triton lives; auto: live in multi-model "
        "mode, else ready",
    )
    inference_type: str = _choice(
        "SAGEMAKER_TRITON_INFERENCE_TYPE",
        ("infer", "generate", "generate_stream"),
        "what a flat JSON body of /invocations asks for; the other bodies are served as with infer",
    )
    model_clients: bool = _setting(
        "SERVE_MODEL_CLIENTS", True, "a model folder's own client.py is loaded; false: ignored"
    )
    device: str = _choice(
        "SERVE_DEVICE",
        ("auto", "cpu", "gpu"),
        "which configuration of a model Triton takes; auto: gpu where one is found",
    )
    cpu_engine: str = _choice(
        "SERVE_CPU_ENGINE",
        ("auto", "onnxruntime", "openvino"),
        "which engine runs ONNX models on the processor, where a model's config.pbtxt names none by its parameter "
        "cpu_engine; auto: OpenVINO where the processor computes in BF16 (AMX, AVX512-BF16) and the model allows it, "
        "else ONNX Runtime",
    )
    engine_cache: Path = _setting(  # noqa: RUF009
        "SERVE_ENGINE_CACHE", ENGINE_CACHE, "folder of the models that OpenVINO compiled at a start, for the next one"
    )
    request_timeout: float = _setting(
        "SERVE_REQUEST_TIMEOUT SAGEMAKER_MODEL_SERVER_TIMEOUT MODEL_SERVER_TIMEOUT",
        60.0,
        "seconds after which a caller gets 504 at the latest",
        within=(1, 3600),
    )
    stream_timeout: float = _setting(
        "SERVE_STREAM_TIMEOUT", 480.0, "seconds that a stream of responses may last", within=(1, 86400)
    )
    multi_model: bool = _setting(
        "SAGEMAKER_MULTI_MODEL", False, "archives that POST /models loads and DELETE /models/NAME unloads are served"
    )
    models_root: Path = _setting(  # noqa: RUF009
        "SERVE_MODELS_ROOT", Path("/opt/ml/models"), "folder of the archives of multi-model mode, ID/model each"
    )
    model_memory_share: float = _setting(
        "SERVE_MODEL_MEMORY_SHARE",
        0.8,
        "share of the container's memory that Triton and the loaded models may take in multi-model mode; a load "
        "beyond it is answered 507",
        within=(0, 1),
    )
    load_timeout: float = _setting(
        "SERVE_LOAD_TIMEOUT", 350.0, "seconds that a load or an unload may take in multi-model mode", within=(1, 86400)
    )
    start_timeout: float = _setting(
        "SERVE_START_TIMEOUT", 300.0, "seconds that a start may take until everything is ready", within=(1, 86400)
    )
    stop_timeout: float = _setting(
        "SERVE_STOP_TIMEOUT", 25.0, "seconds that a stop may take until what is left is killed", within=(0, 3600)
    )
    hang_timeout: float = _setting(
        "SERVE_HANG_TIMEOUT",
        15.0,
        "seconds without a sign of life after which a process that hangs is killed and started again; 0: never, for a "
        "debugger's sake",
        within=(0, 3600),
    )
    max_body_mb: float = _setting(
        "SERVE_MAX_BODY_MB",
        25.0,
        "largest request body in MB; 0: 1024; at least SAGEMAKER_MAX_PAYLOAD_IN_MB",
        within=(0, 1024),
    )
    batch: bool = _setting(
        "SAGEMAKER_BATCH", False, "set by batch transform; the default of SERVE_REQUEST_TIMEOUT is 600 then"
    )
    batch_payload_mb: int = _setting(
        "SAGEMAKER_MAX_PAYLOAD_IN_MB",
        -1,
        "what /execution-parameters tells batch transform to send at a time, in MB; 0: any, in chunks; -1: 6, or as "
        "much as SERVE_MAX_BODY_MB and SAGEMAKER_MAX_CONCURRENT_TRANSFORMS leave",
        within=(-1, 100),
    )
    batch_concurrency: int = _setting(
        "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS",
        0,
        "how many requests /execution-parameters tells batch transform to send at once; 0: two per worker, so that "
        "with their payload they are no more than 100 MB",
        within=(0, 65536),
    )
    batch_strategy: str = _choice(
        "SAGEMAKER_BATCH_STRATEGY",
        ("MULTI_RECORD", "SINGLE_RECORD"),
        "whether /execution-parameters tells batch transform to send many lines in a request, or one",
    )
    max_image_pixels: int = _setting(
        "SERVE_MAX_IMAGE_PIXELS",
        89_000_000,
        "images with more pixels are refused, and those that take more than 8 bytes for each of so many while they are "
        "decoded; images of a request that take more together are decoded one after another",
        within=(1, 2**31),
    )
    workers: int = _setting(
        "SERVE_WORKERS SAGEMAKER_MODEL_SERVER_WORKERS MODEL_SERVER_WORKERS",
        0,
        "gunicorn's worker processes; 0: one per processor, as far as memory goes (500 MB each), at most 16",
        within=(0, 256),
    )
    inference_threads: int = _setting(
        "SERVE_INFERENCE_THREADS", 0, "threads of one model instance; 0: one per processor", within=(0, 1024)
    )
    max_concurrency: int = _setting(
        "SERVE_MAX_CONCURRENCY",
        0,
        "requests in work, more get 503; of several models each has at most as many as are free; 0: 64 per worker, "
        "from 128 to 1024",
        within=(0, 65536),
    )
    server_header: bool = _setting("SERVE_SERVER_HEADER", False, "each reply says our version, as X-Server")
    log_level: str = _setting(
        "SERVE_LOG_LEVEL SAGEMAKER_CONTAINER_LOG_LEVEL",
        "info",
        "how much is logged, by name or by number (20)",
        choices=tuple(LOG_LEVELS),
        parser=parsing.parse_log_level,
    )
    management_secret: str = _setting(
        "SERVE_MANAGEMENT_SECRET",
        "",
        "a header and its value, without which nobody loads, unloads or lists models; none: everybody may",
        parser=parsing.parse_header_secret,
        form="HEADER=VALUE",
        secret=True,
    )
    kserve: str = _choice(
        "SERVE_KSERVE",
        ("auto", "true", "false"),
        "whether Triton's own /v2 routes (KServe v2: health, metadata, statistics, infer, generate) are reachable on "
        "the port; auto: when no variable is set whose name begins with SAGEMAKER_",
        parser=str.lower,
    )
    page: str = _choice(
        "SERVE_PAGE",
        ("false", "auto", "true"),
        "whether / is a page to try the models, and /docs one about the routes; auto, which `make run` sets: when no "
        "variable is set whose name begins with SAGEMAKER_",
        parser=str.lower,
    )
    reload: str = _choice(
        "SERVE_RELOAD",
        ("false", "auto", "true"),
        "whether a model folder that is changed, added or removed is served without a restart; auto, which `make run` "
        "sets: where SAGEMAKER_MULTI_MODEL is not true",
        parser=str.lower,
    )
    cloudwatch: bool = _setting(
        "SAGEMAKER_TRITON_PUBLISH_METRICS_TO_CLOUDWATCH",
        False,
        "the CloudWatch agent, if the image has it, publishes /metrics",
    )
    run_dir: Path = _setting(  # noqa: RUF009
        "SERVE_RUN_DIR", AUTO, "folder of sockets and temporary files; auto: a fresh one, removed at the end"
    )
    allow_grpc: bool = _setting(
        "SAGEMAKER_TRITON_ALLOW_GRPC",
        False,
        "nginx opens Triton's gRPC to others, on SERVE_HOST: what infers and what asks about models",
    )
    grpc_port: int = _setting(
        "SAGEMAKER_TRITON_GRPC_PORT", 8001, "Triton's gRPC port where it is open to others", within=(1, 65535)
    )
    allow_metrics: bool = _setting(
        "SAGEMAKER_TRITON_ALLOW_METRICS", False, "nginx opens Triton's own metrics to others, on SERVE_HOST"
    )
    metrics_port: int = _setting(
        "SAGEMAKER_TRITON_METRICS_PORT", 8002, "port of these metrics where they are open to others", within=(1, 65535)
    )
    additional_arguments: tuple[str, ...] = _setting(
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS",
        (),
        "added to tritonserver's command line, where the last option of a name counts",
        parser=parsing.parse_arguments,
        formatter=shlex.join,
        form="tritonserver's options, quoted as for a shell",
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str], machine: Machine | None = None) -> "Settings":
        """Reads, checks and settles; raises SettingsError with every mistake."""
        values: dict[str, Any] = {}
        mistakes: list[str] = []
        for each in ROWS:
            try:
                values[each.name] = each.read(environ)
            except ValueError as err:
                mistakes.append(str(err))
        if mistakes := mistakes or contradictions(values):
            raise SettingsError(mistakes)
        own = {each.name: values[each.name] for each in TABLE}
        return cls(**own | _by_platform(values, environ)).settled(machine or this_machine())

    def settled(self, machine: Machine) -> "Settings":
        """The same with a value for every 0 or auto that depends on the machine. Paths become absolute, as the children
        run in another folder; an auto for the model repository stays (serving/repository/layout.py)."""
        workers = self.workers or _auto_workers(machine)
        return replace(
            self,
            model_repositories=tuple(path if path == AUTO else path.absolute() for path in self.model_repositories),
            ping_mode=self.ping_mode.replace("auto", "live" if self.multi_model else "ready"),
            device=("gpu" if machine.gpu else "cpu") if self.device == "auto" else self.device,
            max_body_mb=_largest_body(self.max_body_mb, self.batch_payload_mb),
            workers=workers,
            inference_threads=self.inference_threads or max(1, math.floor(machine.cpus)),
            max_concurrency=self.max_concurrency or min(1024, max(128, 64 * workers)),
        )

    def environment(self) -> dict[str, str]:
        """The variables from which a child reads these very Settings."""
        return {each.variables[0]: each.format(getattr(self, each.name)) for each in TABLE}

    def logs(self, level: str) -> bool:
        """Whether lines of that level are logged."""
        return LOG_LEVELS[self.log_level] <= LOG_LEVELS[level]

    @property
    def threads(self) -> int:
        """Of each worker. All but one may be busy with requests: one is always free for /ping."""
        return math.ceil(self.max_concurrency / self.workers) + 1

    @property
    def several_models(self) -> bool:
        """Whether one that hangs must leave others room."""
        return self.multi_model or self.reloads or len(self.load_models) > 1

    @property
    def reloads(self) -> bool:
        """Whether models change while others are served."""
        return self.reload == "true"

    @property
    def live_folder(self) -> Path:
        """What is served then (serving/repository/live.py)."""
        return self.run_dir / "live"

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
    def nginx_stream_timeout(self) -> float:
        """Between two parts of a stream; what bounds a stream as a whole is its gRPC call."""
        return 1.1 * self.stream_timeout

    @property
    def grpc_timeout(self) -> float:
        """nginx outlasts gRPC: the innermost one, which knows most, answers."""
        return 0.9 * self.request_timeout

    @property
    def models_folder(self) -> Path:
        """What the workers know of the loaded archives (serving/multimodel/records.py)."""
        return self.run_dir / "models"

    @property
    def gunicorn_socket(self) -> Path:
        return self.run_dir / "gunicorn.sock"

    @property
    def nginx_beats(self) -> Path:
        """Where each worker of nginx touches a file every second (serving/supervisor/signs.py)."""
        return self.run_dir / "nginx-workers"

    @property
    def gunicorn_beats(self) -> Path:
        """Likewise of gunicorn (serving/front/beat.py)."""
        return self.run_dir / "gunicorn-workers"

    @property
    def door_log(self) -> Path:
        """What nginx writes of the requests that its door hands to Triton past Python."""
        return self.run_dir / "door.log"

    @property
    def triton_restart_request(self) -> Path:
        """Where a worker of gunicorn asks the supervisor to restart tritonserver (serving/supervisor/supervisor.py)."""
        return self.run_dir / "restart-tritonserver"

    @property
    def status_file(self) -> Path:
        """What the supervisor says about the processes, as JSON (serving/host/status.py)."""
        return self.run_dir / "status.json"

    @property
    def triton_sockets(self) -> TritonSockets:
        """Where tritonserver listens."""
        return TritonSockets(self.run_dir / "triton")

    @property
    def shared_memory_file(self) -> Path:
        """With what the names of all that serves here in /dev/shm begin; nobody can guess it."""
        return self.triton_sockets.folder / "shared-memory"


TABLE = tuple(Setting(name=column.name, **column.metadata) for column in fields(Settings))
ROWS: tuple[Setting, ...] = (*TABLE, *HANDED_ON, *TO_CLOUDWATCH)
# What models' code does not get, with the variable that is a mistake without them.
SECRETS = {variable for row in TABLE if row.secret for variable in row.variables}


def markdown() -> str:
    """docs/settings.md."""
    return f"""# Settings

Environment variables, read once; a wrong value stops the start with a message that names it. Of several variables in a
row the first that is set counts. `./serve --help` prints these tables, `./serve --print-config` each value and where it
came from.

{_markdown_table(TABLE)}

## Handed on to tritonserver

Variables of NVIDIA's image that say what stands on tritonserver's command line, checked as the others are.
`SAGEMAKER_TRITON_ADDITIONAL_ARGS` takes any other option.

{_markdown_table(HANDED_ON)}

## Handed on to the CloudWatch agent

Read where `SAGEMAKER_TRITON_PUBLISH_METRICS_TO_CLOUDWATCH` starts it ([metrics](metrics.md#cloudwatch)).

{_markdown_table(TO_CLOUDWATCH)}
"""


def _markdown_table(rows: Iterable[Setting]) -> str:
    lines = ["| Variable | Default | Allowed | Meaning |", "|---|---|---|---|"]
    for each in rows:
        names = ", ".join(f"`{variable}`" for variable in each.variables)
        default = f"`{each.format(each.default)}`" if each.format(each.default) else "none"
        lines.append(f"| {names} | {default} | {each.expected()} | {each.help} |")
    return "\n".join(lines)


def _by_platform(values: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """What is left open and depends on who runs the container."""
    given = {name for name, value in environ.items() if value.strip()}
    sagemaker = any(name.startswith("SAGEMAKER_") for name in given)
    settled = {name: values[name].replace("auto", str(not sagemaker).lower()) for name in ("kserve", "page")}
    settled["reload"] = values["reload"].replace("auto", str(not obstacle_to_reload(values)).lower())
    times = next(each for each in TABLE if each.name == "request_timeout").variables
    return settled | ({"request_timeout": BATCH_TIMEOUT} if values["batch"] and not given & set(times) else {})


def _largest_body(megabytes: float, payload: int) -> float:
    """Batch transform's payload passes; 0 of either is as much as can be set."""
    return max(megabytes or 1024.0, float(payload)) if payload else 1024.0


def _auto_workers(machine: Machine) -> int:
    return max(1, min(math.ceil(machine.cpus), machine.memory // MEMORY_PER_WORKER, 16))


if __name__ == "__main__":
    sys.stdout.write(markdown())
