"""nginx.conf, the template beside `serve`, with the settings put in. Standard library only."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

from serving import VERSION
from serving.host.machine import cpu_quota
from serving.host.network import bracketed
from serving.repository.facts import ModelFacts
from serving.settings.table import Settings
from serving.supervisor.resources import FILES_PER_REQUEST, OWN_FILES, hard_limit, nginx_connections

HERE = Path(__file__).resolve().parents[2]
TEMPLATE = HERE / "nginx.conf"
SECTION = re.compile(r"^ *\{\{#(\w+)\}\}\n(.*?)^ *\{\{/\1\}\}\n", re.MULTILINE | re.DOTALL)
PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")  # as nginx takes it for a model's name
MODULES = Path("/usr/lib/nginx/modules")  # where Debian and Ubuntu put them
PACKAGES = "nginx-light, libnginx-mod-http-lua and lua-cjson"
NGINX_LOG_LEVELS = {"debug": "info", "info": "warn", "warning": "warn", "error": "error", "critical": "crit"}


def nginx_configuration(settings: Settings, models: Mapping[str, ModelFacts]) -> str:
    """nginx.conf with every {{name}} replaced, and its {{#name}} … {{/name}} left out where the setting of that name is
    false; `models` are those that are loaded, by name."""
    connections = nginx_connections(settings.max_concurrency, hard_limit())
    values = {
        # As root nginx would give its workers to another user, who cannot enter the run folder.
        "user": "user root;" if os.geteuid() == 0 else "",
        "nginx_workers": min(4, math.ceil(cpu_quota())),
        "connections": connections,
        "open_files": connections + OWN_FILES,
        "most_requests": connections // FILES_PER_REQUEST,
        "most_bodies": connections // FILES_PER_REQUEST // 2,
        "shutdown_timeout": _milliseconds(max(0.001, 0.9 * settings.stop_timeout)),
        "run_dir": settings.run_dir,
        "log_level": NGINX_LOG_LEVELS[settings.log_level],
        "gunicorn_socket": settings.gunicorn_socket,
        "triton_http": settings.triton_sockets.http,
        "triton_grpc": settings.triton_sockets.grpc,
        "triton_metrics": settings.triton_sockets.metrics,
        "grpc_listen": f"{bracketed(settings.host)}:{settings.grpc_port}",
        "metrics_listen": f"{bracketed(settings.host)}:{settings.metrics_port}",
        "kserve": int(settings.kserve == "true"),
        "max_body_bytes": settings.max_body_bytes,
        "max_body_mb": f"{settings.max_body_mb:g}",
        "max_concurrency": settings.max_concurrency,
        "alone": str(not settings.several_models).lower(),
        "request_timeout": _milliseconds(settings.request_timeout),
        "log_successes": int(settings.logs("info")),
        "log_mistakes": int(settings.logs("warning")),
        "load_timeout": _milliseconds(settings.load_timeout + 10),
        "stream_timeout": _milliseconds(settings.nginx_stream_timeout),
        "streams_by_default": int(settings.inference_type == "generate_stream"),
        "triton_timeout": _milliseconds(settings.grpc_timeout),
        "door_log": settings.door_log,
        "beats": settings.nginx_beats,
        "default_model": settings.default_model if PLAIN_NAME.fullmatch(settings.default_model) else "",
        "door_models": _door_models(settings, models),
        "program": HERE,
        "version": VERSION,
        "modules": MODULES,
        "listen": f"{bracketed(settings.host)}:{settings.port}",
    }
    wanted = {name: getattr(settings, name) for name in ("allow_grpc", "allow_metrics")}
    wanted["page"] = settings.page == "true"
    template = SECTION.sub(lambda match: match[2] if wanted[match[1]] else "", TEMPLATE.read_text(encoding="utf-8"))
    return re.sub(r"\{\{(\w+)\}\}", lambda match: str(values[match[1]]), template)


def has_lua() -> bool:
    """Whether nginx finds what door.lua needs."""
    return (MODULES / "ngx_http_lua_module.so").is_file() and any(Path("/usr/lib").glob("*/lua/5.1/cjson.so"))


def _door_models(settings: Settings, models: Mapping[str, ModelFacts]) -> str:
    """The rows of door.lua's table. None where a model's name is not Triton's, a model may be replaced, or an answer is
    not a plain inference."""
    if settings.multi_model or settings.reloads or settings.inference_type != "infer":
        return ""
    rows = (_door_model(name, model) for name, model in models.items() if PLAIN_NAME.fullmatch(name))
    return "\n            ".join(rows)


def _door_model(name: str, model: ModelFacts) -> str:
    version = f'"{model.version}"' if model.version else "nil"
    return f'["{name}"] = {{ version = {version}, has_client = {str(model.client).lower()} }},'


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
