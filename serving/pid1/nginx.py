"""nginx's process, and its configuration file."""

import contextlib
import ipaddress
import math
import os
import re
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from serving.host.machine import cpu_quota
from serving.pid1.resources import FILES_PER_REQUEST, OWN_FILES, raise_file_limit
from serving.pid1.system import Process
from serving.settings.table import Settings

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "nginx.conf"
SECTION = re.compile(r"^ *\{\{#(\w+)\}\}\n(.*?)^ *\{\{/\1\}\}\n", re.MULTILINE | re.DOTALL)
FEWEST_REQUESTS = 512
# Maximum number of simultaneous uploads of 4 MB or more, which nginx keeps in files. The limit
# is lower if this many bodies could exceed the memory for requests.
MOST_UPLOADS = 64
NGINX_FOLDERS = "/usr/sbin:/usr/local/sbin"  # not on every user's PATH
USUAL_CONNECTIONS = 4096  # connections of an nginx worker, including idle callers
NGINX_LOG_LEVELS = {
    "debug": "info",
    "info": "warn",
    "warning": "warn",
    "error": "error",
    "critical": "crit",
}
# bytes, the maximum that malloc allows: smaller blocks are kept when they are freed
MALLOC_THRESHOLD = f"{32 * 2**20}"
# Lines that are not logged: about every /ping that the supervisor sends before gunicorn listens
# (the supervisor logs these itself), and about every body that is too large (the access log already
# has an entry for each).
NGINX_NOISE = (
    r'connect\(\) to unix:\S+ failed .* request: "GET /ping HTTP',
    "client intended to send too large body",
)
# Matches the query string of a request quoted in nginx's error log. A query string contains no
# space but may contain quotes. The quote that ends the quoted request is kept.
QUERY = r'\?\S*?(?="?,?(?:\s|$))'


def ping_address(settings: Settings) -> tuple[str, int]:
    """Return the address and port at which this machine can reach nginx."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host), settings.port


def bracketed(host: str) -> str:
    """Return the address as it is written before a port, with brackets around IPv6."""
    return f"[{host}]" if ":" in host else host


def nginx(
    settings: Settings,
    environ: Mapping[str, str],
    listeners: Sequence[socket.socket] = (),
    folders: str = NGINX_FOLDERS,
) -> Process:
    """Describe nginx's process, and write nginx.conf into the run folder. The environment variable
    NGINX lists the listeners that it inherits. The program is looked up on the PATH and in
    `folders`."""
    binary = shutil.which("nginx", path=f"{environ.get('PATH', os.defpath)}:{folders}")
    if not binary:
        raise FileNotFoundError(
            "nginx is not installed: install a package of it, such as Debian's nginx-light"
        )
    configuration = settings.run_dir / "nginx.conf"
    configuration.write_text(nginx_configuration(settings), encoding="utf-8")
    command = (binary, "-c", str(configuration), "-p", str(settings.run_dir), "-e", "stderr")
    # With tensors of 600 kB, nginx would otherwise spend half of its time returning memory to the
    # system and requesting it again.
    own = {"MALLOC_MMAP_THRESHOLD_": MALLOC_THRESHOLD, "MALLOC_TRIM_THRESHOLD_": f"{64 * 2**20}"}
    if listeners:
        own["NGINX"] = "".join(f"{listener.fileno()};" for listener in listeners)
    return Process(
        "nginx",
        command,
        {**environ, **own},
        settings.run_dir,
        stop_signal=signal.SIGQUIT,
        noise=NGINX_NOISE,
        omitted=QUERY,
        listeners=tuple(listeners),
    )


def nginx_configuration(settings: Settings) -> str:
    """Return the text of nginx.conf. Each {{name}} is replaced by its entry in `values`, or else by
    the setting of that name. Each section {{#name}} … {{/name}} whose setting is false is
    removed."""
    roomy = max(USUAL_CONNECTIONS, 2 * FILES_PER_REQUEST * settings.max_concurrency)
    connections = min(raise_file_limit(settings.max_concurrency) - OWN_FILES, roomy)
    values = {
        # If nginx runs as root, it would otherwise run its workers as another user, which cannot
        # enter the run folder.
        "user": "user root;" if os.geteuid() == 0 else "",
        "nginx_workers": min(4, math.ceil(cpu_quota())),
        "connections": connections,
        "open_files": connections + OWN_FILES,
        "most_requests": min(
            connections // FILES_PER_REQUEST, max(FEWEST_REQUESTS, 4 * settings.max_concurrency)
        ),
        "most_uploads": min(
            MOST_UPLOADS, settings.request_memory // max(1, settings.max_body_bytes)
        ),
        "shutdown_timeout": _milliseconds(max(0.001, 0.9 * settings.stop_timeout)),
        "log_level": NGINX_LOG_LEVELS[settings.log_level],
        "max_body_mb": f"{settings.max_body_mb:g}",
        "request_timeout": _milliseconds(settings.request_timeout),
        "log_successes": int(settings.logs("info")),
        "log_mistakes": int(settings.logs("warning")),
        "load_timeout": _milliseconds(settings.load_timeout + 10),
        "stream_timeout": _milliseconds(1.1 * settings.stream_timeout),  # the gRPC call ends first
        "streams_by_default": int(settings.inference_type == "generate_stream"),
        "program": ROOT,
        "address": bracketed(settings.host),
        "named_origins": " ".join(f'"{origin}" $http_origin;' for origin in settings.origins),
        "cross_origin": bool(settings.origins),
        "own_hosts": own_hosts(settings),
    }

    def value(name: str) -> object:
        return values[name] if name in values else getattr(settings, name)

    template = TEMPLATE.read_text(encoding="utf-8")
    text = SECTION.sub(
        lambda match: "" if value(match[1]) in (False, "false") else match[2], template
    )
    return re.sub(r"\{\{(\w+)\}\}", lambda match: str(value(match[1])), text)


def own_hosts(settings: Settings) -> str:
    """Return a regular expression for valid `Host` headers. Any host is valid unless nginx listens
    on a loopback address. There, an empty header is valid too, because browsers never omit
    `Host`."""
    if not is_loopback(settings.host):
        return "^"
    ours = [bracketed(settings.host), "localhost", "127.0.0.1", "[::1]"]
    with_port = "|".join(map(re.escape, ours))
    patterns = ["^$", f"^({with_port})(:[0-9]+)?$"]
    for origin in settings.origins:
        host = origin.partition("://")[2]
        patterns.append(f"^{re.escape(host)}$")
    return "|".join(patterns)


def is_loopback(host: str) -> bool:
    """Return whether the address can be reached only from this machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
