"""Describes nginx's process, and writes its configuration file."""

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
from serving.pid1.resources import FILES_PER_REQUEST, OWN_FILES, set_file_limit
from serving.pid1.system import Process
from serving.settings.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "nginx.conf"
SECTION = re.compile(r"^ *\{\{#(\w+)\}\}\n(.*?)^ *\{\{/\1\}\}\n", re.MULTILINE | re.DOTALL)
# nginx accepts at least this many simultaneous requests, if it has enough connections
FEWEST_REQUESTS = 512
# Maximum number of simultaneous uploads of 4 MB or more, or of unknown length. The limit is lower
# if the memory for requests cannot hold MOST_UPLOADS bodies of the maximum size.
MOST_UPLOADS = 64
NGINX_FOLDERS = "/usr/sbin:/usr/local/sbin"  # these are not on every user's PATH
# Maximum number of connections of an nginx worker, including idle ones. The number is higher if
# SERVE_MAX_CONCURRENCY needs more, and lower if the worker may not open that many files.
USUAL_CONNECTIONS = 4096
NGINX_LOG_LEVELS = {
    "debug": "info",
    "info": "warn",
    "warning": "warn",
    "error": "error",
    "critical": "crit",
}
# Bytes; if malloc gets this threshold, it keeps the memory of smaller blocks when they are freed.
# This is the maximum that malloc allows.
MALLOC_THRESHOLD = f"{32 * 2**20}"
# Lines of nginx's error log that are dropped. The first pattern matches the error for each GET
# /ping while gunicorn does not listen, because the supervisor logs that the server is not ready.
# The second matches the error for each body that is too large, which the access log also contains.
NGINX_NOISE = (
    r'connect\(\) to unix:\S+ failed .* request: "GET /ping HTTP',
    "client intended to send too large body",
)
# Matches the query strings in a line of nginx's error log: in the request, the upstream's URL and
# the referrer. A query string ends at a space or the end of the line; it may contain quotes. The
# quote that closes a URL, and the comma after it, are not matched.
QUERY = r'\?\S*?(?="?,?(?:\s|$))'


def ping_address(settings: Settings) -> tuple[str, int]:
    """Return the address and port at which this machine can reach nginx."""
    loopbacks = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # for hosts that stand for all addresses
    return loopbacks.get(settings.host, settings.host), settings.port


def bracketed(host: str) -> str:
    """Return the address as it is written before a port, with brackets around IPv6."""
    return f"[{host}]" if ":" in host else host


def nginx(
    settings: Settings,
    environ: Mapping[str, str],
    listeners: Sequence[socket.socket] = (),
    folders: str = NGINX_FOLDERS,
) -> Process:
    """Describe nginx's process, write nginx.conf into the run folder, and set this process's limit
    of open files. nginx inherits the listeners, which the environment variable NGINX lists. The
    program is searched for on the PATH and in `folders`. Raise FileNotFoundError if it is missing,
    and SettingsError if too few open files are allowed."""
    path = f"{environ.get('PATH', os.defpath)}:{folders}"
    binary = shutil.which("nginx", path=path)
    if not binary:
        raise FileNotFoundError(
            "nginx is not installed: install a package of it, such as Debian's nginx-light"
        )
    configuration = settings.run_dir / "nginx.conf"
    file_limit = set_file_limit(settings.max_concurrency)  # nginx inherits the limit
    configuration.write_text(nginx_configuration(settings, file_limit), encoding="utf-8")
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


def nginx_configuration(settings: Settings, file_limit: int) -> str:
    """Return the text of nginx.conf, made from the template. {{name}} is replaced by its entry in
    `values`, or else by the setting of that name. A section {{#name}} … {{/name}} is removed if the
    value for `name` is false. `file_limit` is the maximum number of open files of a process."""
    # each worker of nginx should be able to hold twice as many requests as the Flask app admits
    wanted = max(USUAL_CONNECTIONS, 2 * FILES_PER_REQUEST * settings.max_concurrency)
    connections = min(file_limit - OWN_FILES, wanted)
    values = {
        # Run the workers as the same user as nginx. By default, if that is root, nginx would run
        # them as another user, who cannot enter the run folder.
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
        # nginx closes its connections before it is killed; to nginx, 0 would mean no limit
        "shutdown_timeout": _milliseconds(max(0.001, 0.9 * settings.stop_timeout)),
        "log_level": NGINX_LOG_LEVELS[settings.log_level],
        "max_body_mb": f"{settings.max_body_mb:g}",
        "request_timeout": _milliseconds(settings.request_timeout),
        "log_successes": int(settings.logs("info")),
        "log_mistakes": int(settings.logs("warning")),
        "load_timeout": _milliseconds(settings.load_timeout + 10),  # the manager's limit ends first
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

    def section(match: re.Match[str]) -> str:
        is_kept = value(match[1]) not in (False, "false")
        return match[2] if is_kept else ""

    text = SECTION.sub(section, TEMPLATE.read_text(encoding="utf-8"))
    return re.sub(r"\{\{(\w+)\}\}", lambda match: str(value(match[1])), text)


def own_hosts(settings: Settings) -> str:
    """Return a regular expression for valid `Host` headers. If nginx listens on a loopback address,
    the header must name this machine or one of the origins in SERVE_ORIGINS, or be missing: the
    restriction is for browsers, which always send it. Otherwise, any header is valid."""
    if not is_loopback(settings.host):
        return "^"
    own_names = [bracketed(settings.host), "localhost", "127.0.0.1", "[::1]"]
    names = "|".join(map(re.escape, own_names))
    patterns = ["^$", f"^({names})(:[0-9]+)?$"]
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
