"""nginx.conf, the template beside `serve`, with the settings put in. Standard library only."""

import os
import re
import resource
from collections.abc import Mapping
from pathlib import Path

from serving.host.machine import memory_limit
from serving.repository.facts import ModelFacts
from serving.settings.forms import bracketed
from serving.settings.row import LOG_LEVELS
from serving.settings.table import Settings

TEMPLATE = Path(__file__).resolve().parents[2] / "nginx.conf"
PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")  # as nginx takes it for a model's name
DIGITS_OF_ANY = 3  # of a shape's sizes: a body may be as short as it likes
MOST_DIRECT_MB = 26  # SageMaker passes on 25 MB (26,214,400 bytes), but for asynchronous calls
LEAST_BYTES = (100, 1_000, 10_000, 60_000)  # behind or before a shape of 4, 5, 6 or 7; PCRE2 counts to 65,535
NGINX_LOG_LEVELS = {"debug": "info", "info": "warn", "warning": "warn", "error": "error", "critical": "crit"}


def nginx_configuration(settings: Settings, facts: Mapping[str, ModelFacts]) -> str:
    """nginx.conf with every {{name}} replaced; `facts` are of the models that are loaded, by name."""
    connections = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2)
    models = {name: model for name, model in facts.items() if PLAIN_NAME.fullmatch(name)}
    direct_megabytes = direct_megabytes_of(settings.max_concurrency, memory_limit())
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
        "triton_timeout": _milliseconds(settings.grpc_timeout),
        "direct_log": settings.direct_log,
        "direct": int(_direct(settings)),
        "direct_megabytes": direct_megabytes,
        "direct_lengths": lengths_below(direct_megabytes),
        "default_model": settings.default_model,
        "latest_versions": _rows({name: model.version or '""' for name, model in models.items()}),
        "tensor_models": _rows({name: int(not model.client) for name, model in models.items()}),
        "too_large_shape": _too_large_shape(),
        "listen": f"{bracketed(settings.host)}:{settings.port}",
    }
    template = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: str(values[match[1]]), template)


def _direct(settings: Settings) -> bool:
    """Whether tensors go to Triton past Python. In multi-model mode a model's name is not Triton's."""
    return settings.direct_tensors and not settings.multi_model and settings.inference_type == "infer"


def direct_megabytes_of(concurrency: int, memory: int) -> int:
    """nginx holds a body to look at it, and most of them twice, for they come in two pieces. If each request in work
    has the largest, that is a quarter of the `memory` (in bytes)."""
    return max(1, min(MOST_DIRECT_MB, memory // 4 // (2 * concurrency) // 10**6))


def lengths_below(megabytes: int) -> str:
    """The pattern of a body's length in bytes."""
    return "([1-9][0-9]{0,5}" + "".join(f"|{million}[0-9]{{6}}" for million in range(1, megabytes)) + ")"


def _rows(values: Mapping[str, object]) -> str:
    """The rows of a map."""
    return "\n        ".join(f"{name} {value};" for name, value in values.items())


def _too_large_shape() -> str:
    """The pattern of a shape whose sizes, those of 1 not counted, have too many digits for the bytes around it.

    No attempt goes past the next quote, so that a body of many shapes costs no more time than its length."""
    size_one, no_digit = r"(?<![0-9])1(?![0-9])", r"[^\]\"0-9]"
    digit = rf"(?:{no_digit}|{size_one})*+[0-9]"
    too_many = digit
    for size in reversed(LEAST_BYTES):
        too_many = rf"{digit}(?:(?!.{{{size}}})(?<!.{{{size}}})|{too_many})"
    return rf"(?s)\"shape\"\s*:\s*\[(?:{digit}){{{DIGITS_OF_ANY}}}{too_many}"


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
