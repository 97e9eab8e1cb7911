"""nginx's process, and nginx.conf: the template beside `serve` with the settings put in."""

import math
import os
import re
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from serving import VERSION
from serving.host.machine import cpu_quota
from serving.host.network import bracketed
from serving.settings.table import Settings
from serving.supervisor.resources import FILES_PER_REQUEST, OWN_FILES, hard_limit, nginx_connections
from serving.supervisor.system import Process

HERE = Path(__file__).resolve().parents[2]
TEMPLATE = HERE / "nginx.conf"
SECTION = re.compile(r"^ *\{\{#(\w+)\}\}\n(.*?)^ *\{\{/\1\}\}\n", re.MULTILINE | re.DOTALL)
FEWEST_REQUESTS = 512
NGINX_LOG_LEVELS = {"debug": "info", "info": "warn", "warning": "warn", "error": "error", "critical": "crit"}
MALLOC_THRESHOLD = f"{32 * 2**20}"  # bytes, the most that malloc allows: below it, it keeps what is freed
# Not logged: nginx's line for each /ping of ours while gunicorn does not listen yet, which the supervisor logs itself.
NGINX_NOISE = (r'connect\(\) to unix:\S+ failed .* request: "GET /ping HTTP',)


def nginx(settings: Settings, environ: Mapping[str, str], listeners: Sequence[socket.socket] = ()) -> Process:
    """Return nginx's process, and write nginx.conf into the run folder. The variable NGINX names its listeners."""
    binary = shutil.which("nginx", path=f"{environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    if not binary:
        raise FileNotFoundError("nginx is not installed: install a package of it, such as Debian's nginx-light")
    configuration = settings.run_dir / "nginx.conf"
    text = nginx_configuration(settings)
    configuration.write_text(text, encoding="utf-8")
    command = (binary, "-c", str(configuration), "-p", str(settings.run_dir), "-e", "stderr")
    # Else nginx spends half of its time with a tensor of 600 kB on giving memory back and asking for it again.
    heap = {"MALLOC_MMAP_THRESHOLD_": MALLOC_THRESHOLD, "MALLOC_TRIM_THRESHOLD_": f"{64 * 2**20}"}
    inherited = {"NGINX": "".join(f"{listener.fileno()};" for listener in listeners)} if listeners else {}
    return Process(
        "nginx",
        command,
        {**environ, **heap, **inherited},
        settings.run_dir,
        stop_signal=signal.SIGQUIT,
        noise=NGINX_NOISE,
        listeners=tuple(listeners),
    )


def nginx_configuration(settings: Settings) -> str:
    """Return nginx.conf with every {{name}} replaced, without each {{#name}} … {{/name}} whose setting is false."""
    connections = nginx_connections(settings.max_concurrency, hard_limit())
    values = {
        # As root nginx would give its workers to another user, who cannot enter the run folder.
        "user": "user root;" if os.geteuid() == 0 else "",
        "nginx_workers": min(4, math.ceil(cpu_quota())),
        "connections": connections,
        "open_files": connections + OWN_FILES,
        "most_requests": min(connections // FILES_PER_REQUEST, max(FEWEST_REQUESTS, 4 * settings.max_concurrency)),
        "shutdown_timeout": _milliseconds(max(0.001, 0.9 * settings.stop_timeout)),
        "run_dir": settings.run_dir,
        "log_level": NGINX_LOG_LEVELS[settings.log_level],
        "gunicorn_socket": settings.gunicorn_socket,
        "triton_http": settings.triton_sockets.http,
        "triton_grpc": settings.triton_sockets.grpc,
        "triton_metrics": settings.triton_sockets.metrics,
        "grpc_listen": f"{bracketed(settings.host)}:{settings.grpc_port}",
        "metrics_listen": f"{bracketed(settings.host)}:{settings.metrics_port}",
        "kserve": int(settings.kserve != "false"),
        "max_body_bytes": settings.max_body_bytes,
        "max_body_mb": f"{settings.max_body_mb:g}",
        "request_timeout": _milliseconds(settings.request_timeout),
        "log_successes": int(settings.logs("info")),
        "log_mistakes": int(settings.logs("warning")),
        "load_timeout": _milliseconds(settings.load_timeout + 10),
        "stream_timeout": _milliseconds(settings.nginx_stream_timeout),
        "streams_by_default": int(settings.inference_type == "generate_stream"),
        "program": HERE,
        "version": VERSION,
        "listen": f"{bracketed(settings.host)}:{settings.port}",
    }
    wanted = {name: getattr(settings, name) for name in ("allow_grpc", "allow_metrics")}
    wanted["trusted_kserve"] = settings.kserve == "trusted"
    wanted["page"] = settings.page == "true"
    template = SECTION.sub(lambda match: match[2] if wanted[match[1]] else "", TEMPLATE.read_text(encoding="utf-8"))
    return re.sub(r"\{\{(\w+)\}\}", lambda match: str(values[match[1]]), template)


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
