"""nginx.conf, the template beside `serve`, with the settings put in. Standard library only."""

import math
import os
import re
import resource
from pathlib import Path

from serving.host.address import bracketed
from serving.host.machine import cpu_quota
from serving.repository.layout import CONFIG, versions
from serving.settings.table import Settings

HERE = Path(__file__).resolve().parents[2]
TEMPLATE, CLIENTS = HERE / "nginx.conf", HERE / "clients"
NAMES_A_CLIENT = re.compile(r"""["']client["']""")
NAMES_VERSIONS = re.compile(r"\bspecific\b")  # version_policy: { specific: { versions: [1, 3] } }
PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")  # as nginx takes it for a model's name
MODULES = Path("/usr/lib/nginx/modules")  # where Debian and Ubuntu put them
PACKAGES = "nginx-light, libnginx-mod-http-lua and lua-cjson"
NGINX_LOG_LEVELS = {"debug": "info", "info": "warn", "warning": "warn", "error": "error", "critical": "crit"}


def nginx_configuration(settings: Settings, triton_http_port: int) -> str:
    """nginx.conf with every {{name}} replaced."""
    connections = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2)
    values = {
        # As root nginx would give its workers to another user, who cannot enter the run folder.
        "user": "user root;" if os.geteuid() == 0 else "",
        "nginx_workers": min(4, math.ceil(cpu_quota())),
        "connections": connections,
        "open_files": 2 * connections,
        "shutdown_timeout": _milliseconds(max(0.001, 0.9 * settings.stop_timeout)),
        "run_dir": settings.run_dir,
        "log_level": NGINX_LOG_LEVELS[settings.log_level],
        "gunicorn_socket": settings.gunicorn_socket,
        "triton_http_port": triton_http_port,
        "kserve": int(settings.kserve == "true"),
        "max_body_bytes": settings.max_body_bytes,
        "max_body_mb": f"{settings.max_body_mb:g}",
        "max_concurrency": settings.max_concurrency,
        "request_timeout": _milliseconds(settings.nginx_timeout),
        "log_successes": int(settings.logs("info")),
        "log_mistakes": int(settings.logs("warning")),
        "load_timeout": _milliseconds(settings.load_timeout + 10),
        "stream_timeout": _milliseconds(settings.nginx_stream_timeout),
        "streams_by_default": int(settings.inference_type == "generate_stream"),
        "triton_timeout": _milliseconds(settings.grpc_timeout),
        "door_log": settings.door_log,
        "default_model": settings.default_model if PLAIN_NAME.fullmatch(settings.default_model) else "",
        "door_models": _door_models(settings),
        "program": HERE,
        "modules": MODULES,
        "listen": f"{bracketed(settings.host)}:{settings.port}",
    }
    template = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: str(values[match[1]]), template)


def has_lua() -> bool:
    """Whether nginx finds what door.lua needs."""
    return (MODULES / "ngx_http_lua_module.so").is_file() and any(Path("/usr/lib").glob("*/lua/5.1/cjson.so"))


def _models(settings: Settings) -> dict[str, Path]:
    """The folders of the models that are loaded, by their names."""
    places = [place / name for name in settings.load_models for place in reversed(settings.model_repositories)]
    return {folder.name: folder for folder in places if PLAIN_NAME.fullmatch(folder.name) and folder.is_dir()}


def _door_models(settings: Settings) -> str:
    """The rows of door.lua's table. None where a model's name is not Triton's or an answer is not a plain inference."""
    if settings.multi_model or settings.inference_type != "infer":
        return ""
    return "\n            ".join(_door_model(folder) for folder in _models(settings).values())


def _door_model(folder: Path) -> str:
    version = f'"{latest}"' if (latest := _latest_version(folder)) else "nil"
    return f'["{folder.name}"] = {{ version = {version}, has_client = {str(_has_client(folder)).lower()} }},'


def _latest_version(folder: Path) -> str:
    """What answers when a request names no version; "" where the configuration's policy names versions."""
    found = versions(folder)
    return found[-1].name if found and not any(map(NAMES_VERSIONS.search, _configurations(folder))) else ""


def _configurations(folder: Path) -> list[str]:
    files = [folder / CONFIG, *folder.glob("configs/*.pbtxt")]
    return [path.read_text(encoding="utf-8", errors="replace") for path in files if path.is_file()]


def _has_client(folder: Path) -> bool:
    """By the text of its files; a model without one takes tensors only."""
    modules = [folder / "client.py", CLIENTS / f"{folder.name}.py", CLIENTS / folder.name / "__init__.py"]
    return any(module.exists() for module in modules) or any(map(NAMES_A_CLIENT.search, _configurations(folder)))


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
