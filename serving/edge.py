"""nginx.conf, the template beside `serve`, with the settings put in. Standard library only."""

import os
import re
import resource
from pathlib import Path

from serving.setting import LOG_LEVELS
from serving.settings import Settings
from serving.values import bracketed

TEMPLATE = Path(__file__).resolve().parents[1] / "nginx.conf"
NGINX_LOG_LEVELS = {
    "debug": "info",
    "info": "warn",
    "warning": "warn",
    "error": "error",
    "critical": "crit",
}


def nginx_configuration(settings: Settings) -> str:
    """nginx.conf with every {{name}} replaced."""
    connections = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2)
    values = {
        # As root nginx would give its workers to another user, who cannot enter the run folder.
        "user": "user root;" if os.geteuid() == 0 else "",
        "nginx_workers": settings.nginx_workers,
        "connections": connections,
        "open_files": 2 * connections,
        "shutdown_timeout": _milliseconds(max(0.001, 0.9 * settings.stop_timeout)),
        "run_dir": settings.run_dir,
        "log_level": NGINX_LOG_LEVELS[settings.log_level],
        "gunicorn_socket": settings.gunicorn_socket,
        "triton_http_port": settings.triton_http_port,
        "kserve": int(settings.kserve == "true"),
        "max_body_bytes": settings.max_body_bytes,
        "max_body_mb": f"{settings.max_body_mb:g}",
        "max_concurrency": settings.max_concurrency,
        "request_timeout": _milliseconds(settings.nginx_timeout),
        "log_successes": int(LOG_LEVELS[settings.log_level] <= LOG_LEVELS["info"]),
        "log_mistakes": int(LOG_LEVELS[settings.log_level] <= LOG_LEVELS["warning"]),
        "load_timeout": _milliseconds(settings.load_timeout + 10),
        "stream_timeout": _milliseconds(settings.nginx_stream_timeout),
        "streams_by_default": int(settings.inference_type == "generate_stream"),
        "listen": f"{bracketed(settings.host)}:{settings.port}",
    }
    template = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: str(values[match[1]]), template)


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
