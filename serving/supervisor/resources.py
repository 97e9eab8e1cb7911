"""What a start takes from the machine: open files (`ulimit -n`), listening ports, names in /dev/shm."""

import contextlib
import fcntl
import os
import re
import resource
import secrets
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from serving.settings.setting import SettingsError
from serving.settings.table import Settings

OWN_FILES = 64  # of a process that has no request: logs, pipes, sockets, libraries, those of its metrics
FILES_PER_REQUEST = 3  # nginx: the caller's connection, the one to gunicorn, a large body; gunicorn: fewer
FEWEST_FILES = 128  # below it tritonserver does not start with a model
MOST_FILES = 65536  # that are asked for: more are of no use
USUAL_CONNECTIONS = 4096  # of a worker of nginx: idle callers are among them
BACKLOG = 1024  # as in nginx.conf
SHARED_MEMORY = Path("/dev/shm")
LOCK = "lock-"
PREFIX = re.compile(r"serve-[0-9a-f]{16}")  # as new_prefix makes it; a file lock-… of another program is ignored


def hard_limit() -> int:
    """Return how far a process may raise its own limit of open files."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return MOST_FILES if limit == resource.RLIM_INFINITY else min(MOST_FILES, limit)


def raise_soft_limit() -> None:
    """Raise the limit of open files to the hard one, for all processes that are started from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard_limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit(), hard))


def nginx_connections(max_concurrency: int, limit: int) -> int:
    """Return the connections of one worker of nginx: room for twice `max_concurrency`, if the limit allows it."""
    return min(limit - OWN_FILES, max(USUAL_CONNECTIONS, 2 * FILES_PER_REQUEST * max_concurrency))


def most_concurrency(limit: int) -> int:
    """Return for how many requests one process has files enough. SettingsError when it has too few for any."""
    if limit < FEWEST_FILES:
        raise SettingsError([f"only {limit} open files are allowed (ulimit -n), at least {FEWEST_FILES} are needed"])
    return (limit - OWN_FILES) // FILES_PER_REQUEST


def fitted(settings: Settings) -> Settings:
    """Return the settings with `max_concurrency` lowered to what there are files for."""
    return replace(settings, max_concurrency=min(settings.max_concurrency, most_concurrency(hard_limit())))


def shortage(settings: Settings) -> str:
    """Return what the log should say if `fitted` lowers something, else ""."""
    limit, wanted, most = hard_limit(), settings.max_concurrency, most_concurrency(hard_limit())
    if wanted <= most:
        return ""
    needed = OWN_FILES + FILES_PER_REQUEST * wanted
    return (
        f"no more than {limit} open files are allowed (ulimit -n), {needed} are needed for SERVE_MAX_CONCURRENCY="
        f"{wanted}: no more than {most} requests are in work at once. Start the container with --ulimit nofile={needed}"
    )


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[tuple[socket.socket, ...]]:
    """Yield a listening socket for each port that others reach, which nginx inherits: while nginx is started again,
    callers wait. SettingsError names the ports that cannot be had."""
    wanted = {f"SERVE_HOST={settings.host} and PORT={settings.port}": settings.port}
    if settings.allow_grpc:
        wanted[f"SAGEMAKER_TRITON_GRPC_PORT={settings.grpc_port}"] = settings.grpc_port
    if settings.allow_metrics:
        wanted[f"SAGEMAKER_TRITON_METRICS_PORT={settings.metrics_port}"] = settings.metrics_port
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    mistakes, listeners = [], []
    with contextlib.ExitStack() as opened:
        for name, port in wanted.items():
            try:
                listener = socket.create_server((settings.host, port), family=family, backlog=BACKLOG)
            except OSError as err:
                mistakes.append(f"{name}: cannot listen there: {reason(err)}")
            else:
                listener.setblocking(False)  # two workers of nginx see a connection, and one gets it
                listeners.append(opened.enter_context(listener))
        if mistakes:
            raise SettingsError(mistakes)
        yield tuple(listeners)


def reason(error: OSError) -> str:
    """Return the system's words, without those that create_server adds."""
    return (error.strerror or str(error)).partition(" (while attempting")[0]


def new_prefix() -> str:
    return f"serve-{secrets.token_hex(8)}"


@contextlib.contextmanager
def held(prefix: str, folder: Path = SHARED_MEMORY) -> Iterator[None]:
    """Lock the prefix of what we make in /dev/shm, and remove what a killed `serve` left there.

    /dev/shm may outlive a container (a pod's volume, the host's own). A `serve` that lives holds its lock."""
    for lock in folder.glob(f"{LOCK}*"):
        left = lock.name.removeprefix(LOCK)
        if not PREFIX.fullmatch(left):
            continue
        with contextlib.suppress(OSError), lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(left, folder)
    with contextlib.ExitStack() as locked:
        with contextlib.suppress(OSError):  # a full or missing /dev/shm has its own warning
            descriptor = os.open(folder / f".{prefix}", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            locked.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            (folder / f".{prefix}").rename(folder / f"{LOCK}{prefix}")  # by that name it is always locked
            locked.callback(_remove, prefix, folder)
        yield


def _remove(prefix: str, folder: Path) -> None:
    for left in (*folder.glob(f"{prefix}*"), folder / f"{LOCK}{prefix}"):
        with contextlib.suppress(OSError):
            left.unlink()
