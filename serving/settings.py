"""Every setting, in one table: variable, type, default, help. Read once, every mistake reported together.

`Settings.from_env(os.environ)` also settles what is left to "auto" (0, or the word), so that a Settings
holds only final values; `serve` adds the ports and the folder it picked and hands `settings.environment()`
on to its children, which read the same Settings from it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from serving.machine import Machine, this_machine

AUTO = Path("auto")
PLATFORM_MODELS = Path("/opt/ml/model")
BUILT_IN_MODELS = Path(__file__).resolve().parents[1] / "model_repository"
MEGABYTE = 1024 * 1024
MEMORY_PER_WORKER = 500 * MEGABYTE
LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class SettingsError(Exception):
    """One or more wrong values; `mistakes` has a line for each: variable, value and what is allowed."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True)
class Setting:
    """One row. The first of `variables` that is set and not empty counts; the first is the main one."""

    name: str
    variables: tuple[str, ...]
    default: Any
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    parser: Callable[[str], Any] | None = None

    def read(self, environ: Mapping[str, str]) -> Any:
        """The value; raises ValueError that names variable, value and what is allowed."""
        for variable in self.variables:
            if text := environ.get(variable, "").strip():
                return self._parse(variable, text)
        return self.default

    def _parse(self, variable: str, text: str) -> Any:
        try:
            value = (self.parser or _PARSERS[type(self.default)])(text)
        except (ValueError, KeyError):
            value = None
        if value is None or not self._allows(value):
            raise ValueError(f"{variable}={text!r} is wrong: it must be {self.expected()}")
        return value

    def _allows(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        low, high = self.minimum, self.maximum
        return (low is None or value >= low) and (high is None or value <= high)

    def expected(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = _TYPE_NAMES[type(self.default)]
        if self.minimum is not None and self.maximum is not None:
            words += f" from {self.minimum:.12g} to {self.maximum:.12g}"
        return words


def _parse_float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value


def _parse_bool(text: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True}
    return (words | {"false": False, "0": False, "no": False, "off": False})[text.lower()]


def _parse_log_level(text: str) -> str:
    """A name or a number as Python's logging has it; a number between two levels is the next one up."""
    if not text.isdecimal():
        return text.lower()
    return next((name for name, number in LOG_LEVELS.items() if int(text) <= number), text)


_PARSERS: dict[type, Callable[[str], Any]] = {
    bool: _parse_bool, int: int, float: _parse_float, str: str, type(AUTO): Path,
}  # fmt: skip
_TYPE_NAMES = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a string", type(AUTO): "a path",
}  # fmt: skip


def _setting(*variables: str, **row: Any) -> Any:
    return field(default=row["default"], metadata={"variables": variables, **row})


@dataclass(frozen=True)
class Settings:
    """The table's values. Timeouts are in seconds, sizes in MB of 1024*1024 bytes."""

    port: int = _setting(
        "SAGEMAKER_BIND_TO_PORT", "PORT", default=8080, minimum=1, maximum=65535,
        help="port that nginx listens on",
    )  # fmt: skip
    host: str = _setting("SERVE_HOST", default="0.0.0.0", help="address that nginx listens on")
    model_repository: Path = _setting(  # noqa: RUF009 (a Path is immutable)
        "SERVE_MODEL_REPOSITORY", default=AUTO,
        help="folder of the model folders; auto: /opt/ml/model when it holds one, else the built-in "
        "model_repository",
    )  # fmt: skip
    default_model: str = _setting(
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", default="", help="model of the requests that name none"
    )
    model_clients: bool = _setting(
        "SERVE_MODEL_CLIENTS", default=True, help="a model folder's own client.py is loaded; false: ignored"
    )
    device: str = _setting(
        "SERVE_DEVICE", default="auto", choices=("auto", "cpu", "gpu"),
        help="which of a model's configurations Triton takes; auto: gpu where one is found",
    )  # fmt: skip
    request_timeout: float = _setting(
        "SERVE_REQUEST_TIMEOUT", "SAGEMAKER_MODEL_SERVER_TIMEOUT", "MODEL_SERVER_TIMEOUT",
        default=60.0, minimum=1, maximum=3600, help="seconds after which a caller gets 504 at the latest",
    )  # fmt: skip
    start_timeout: float = _setting(
        "SERVE_START_TIMEOUT", default=300.0, minimum=1, maximum=86400,
        help="seconds that a start may take until everything is ready",
    )  # fmt: skip
    stop_timeout: float = _setting(
        "SERVE_STOP_TIMEOUT", default=25.0, minimum=0, maximum=3600,
        help="seconds that a stop may take until what is left is killed",
    )  # fmt: skip
    max_body_mb: float = _setting(
        "SERVE_MAX_BODY_MB", "SAGEMAKER_MAX_PAYLOAD_IN_MB", default=25.0, minimum=0, maximum=1024,
        help="largest request body in MB (1024*1024 bytes); 0: 1024",
    )  # fmt: skip
    max_image_pixels: int = _setting(
        "SERVE_MAX_IMAGE_PIXELS", default=89_000_000, minimum=1, maximum=2**31,
        help="an image with more pixels is refused before it is decoded",
    )  # fmt: skip
    workers: int = _setting(
        "SERVE_WORKERS", "SAGEMAKER_MODEL_SERVER_WORKERS", "MODEL_SERVER_WORKERS",
        default=0, minimum=0, maximum=256,
        help="gunicorn's worker processes; 0: one per processor, as far as memory goes (500 MB each), "
        "at most 16",
    )  # fmt: skip
    threads: int = _setting(
        "SERVE_THREADS", default=0, minimum=0, maximum=4096,
        help="threads of each worker; 0: as many as SERVE_MAX_CONCURRENCY asks for, and one for /ping",
    )  # fmt: skip
    nginx_workers: int = _setting(
        "SERVE_NGINX_WORKERS", default=0, minimum=0, maximum=256,
        help="nginx's worker processes; 0: one per processor, at most 4",
    )  # fmt: skip
    inference_threads: int = _setting(
        "SERVE_INFERENCE_THREADS", default=0, minimum=0, maximum=1024,
        help="threads of one model instance; 0: one per processor",
    )  # fmt: skip
    max_concurrency: int = _setting(
        "SERVE_MAX_CONCURRENCY", default=128, minimum=1, maximum=65536,
        help="requests in work at once, more are answered 503; never more than the threads can hold",
    )  # fmt: skip
    log_level: str = _setting(
        "SERVE_LOG_LEVEL", "SAGEMAKER_CONTAINER_LOG_LEVEL", default="info",
        choices=tuple(LOG_LEVELS), parser=_parse_log_level,
        help="how much is logged, by name or by number (20)",
    )  # fmt: skip
    run_dir: Path = _setting(  # noqa: RUF009
        "SERVE_RUN_DIR", default=AUTO,
        help="folder of sockets, rendered configuration and temporary files; auto: a fresh one, removed at "
        "the end",
    )  # fmt: skip
    triton_http_port: int = _setting(
        "SERVE_TRITON_HTTP_PORT", default=0, minimum=0, maximum=65535,
        help="Triton's HTTP port on 127.0.0.1; 0: a free one",
    )  # fmt: skip
    triton_grpc_port: int = _setting(
        "SERVE_TRITON_GRPC_PORT", default=0, minimum=0, maximum=65535,
        help="Triton's gRPC port on 127.0.0.1; 0: a free one",
    )  # fmt: skip
    triton_metrics_port: int = _setting(
        "SERVE_TRITON_METRICS_PORT", default=0, minimum=0, maximum=65535,
        help="Triton's metrics port on 127.0.0.1; 0: a free one",
    )  # fmt: skip

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
        if mistakes:
            raise SettingsError(mistakes)
        return cls(**values).settled(machine or this_machine())

    def settled(self, machine: Machine, platform_models: Path = PLATFORM_MODELS) -> "Settings":
        """The same with a value in place of every 0 or auto that depends on the machine."""
        workers = self.workers or _auto_workers(machine)
        # Every thread but one per worker may be busy with /invocations: one is always free for /ping.
        threads = max(2, self.threads or math.ceil((self.max_concurrency + workers) / workers))
        return replace(
            self,
            model_repository=_repository(self.model_repository, platform_models),
            device=("gpu" if machine.gpu else "cpu") if self.device == "auto" else self.device,
            max_body_mb=self.max_body_mb or 1024.0,
            workers=workers,
            threads=threads,
            nginx_workers=self.nginx_workers or min(4, math.ceil(machine.cpus)),
            inference_threads=self.inference_threads or max(1, math.floor(machine.cpus)),
            max_concurrency=min(self.max_concurrency, workers * (threads - 1)),
        )

    def environment(self) -> dict[str, str]:
        """The variables from which a child reads these very Settings."""
        return {row.variables[0]: _format(getattr(self, row.name)) for row in TABLE}

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * MEGABYTE)

    @property
    def nginx_timeout(self) -> float:
        """nginx outlasts gunicorn, gunicorn outlasts gRPC: so the innermost one that knows most answers."""
        return self.request_timeout

    @property
    def gunicorn_timeout(self) -> float:
        return 0.95 * self.request_timeout

    @property
    def grpc_timeout(self) -> float:
        return 0.9 * self.request_timeout

    @property
    def gunicorn_socket(self) -> Path:
        return self.run_dir / "gunicorn.sock"

    @property
    def status_file(self) -> Path:
        """What the supervisor says about the processes, as JSON (serving/process.py)."""
        return self.run_dir / "status.json"


def _row(name: str, variables: tuple[str, ...], **row: Any) -> Setting:
    return Setting(name=name, variables=variables, **row)


TABLE = tuple(_row(column.name, **column.metadata) for column in fields(Settings))


def markdown() -> str:
    """The table as the README shows it."""
    rows = ["| Variable | Default | Allowed | Meaning |", "|---|---|---|---|"]
    for row in TABLE:
        names = ", ".join(f"`{variable}`" for variable in row.variables)
        default = f"`{_format(row.default)}`" if _format(row.default) else "none"
        rows.append(f"| {names} | {default} | {row.expected()} | {row.help} |")
    return "\n".join(rows) + "\n"


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.17g}" if isinstance(value, float) else str(value)


def _auto_workers(machine: Machine) -> int:
    return max(1, min(math.ceil(machine.cpus), machine.memory // MEMORY_PER_WORKER, 16))


def _repository(configured: Path, platform_models: Path) -> Path:
    """An absolute path, for the children run in another folder."""
    if configured != AUTO:
        return configured.absolute()
    return platform_models if _holds_a_model(platform_models) else BUILT_IN_MODELS


def _holds_a_model(folder: Path) -> bool:
    return any(folder.glob("*/config.pbtxt")) or any(folder.glob("*/[0-9]*/"))
