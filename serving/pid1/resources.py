"""What a start takes from the machine: open files (`ulimit -n`), listening ports, names in /dev/shm."""

import contextlib
import fcntl
import resource
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from serving.settings.table import Settings, SettingsError

OWN_FILES = 64  # of a process that has no request: logs, pipes, sockets, libraries, those of its metrics
FILES_PER_REQUEST = 3  # nginx: the caller's connection, the one to gunicorn, a large body; gunicorn: fewer
FEWEST_FILES = 128  # below it tritonserver does not start with a model
MOST_FILES = 65536  # unless more are needed
BACKLOG = 1024  # as in nginx.conf
SHARED_MEMORY = Path("/dev/shm")


def raise_file_limit(max_concurrency: int) -> int:
    """Raise the limit of open files to the hard one, for all processes that are started from now on, and return it.
    Raise SettingsError if it is too low for `max_concurrency` requests."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = max(FEWEST_FILES, OWN_FILES + FILES_PER_REQUEST * max_concurrency)
    limit = max(needed, MOST_FILES) if hard == resource.RLIM_INFINITY else min(max(needed, MOST_FILES), hard)
    if limit < needed:
        what = f"SERVE_MAX_CONCURRENCY={max_concurrency} needs {needed} open files, and only {limit} are allowed"
        raise SettingsError([f"{what} (ulimit -n): start the container with --ulimit nofile={needed}, or lower it"])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[tuple[socket.socket, ...]]:
    """Yield a listening socket for each port that others reach, which nginx inherits: while nginx is started again,
    callers wait. Raise SettingsError that names the ports that cannot be had."""
    wanted = {f"SERVE_HOST={settings.host} and PORT": settings.port}
    wanted |= {"SAGEMAKER_TRITON_GRPC_PORT": settings.grpc_port} if settings.allow_grpc else {}
    wanted |= {"SAGEMAKER_TRITON_METRICS_PORT": settings.metrics_port} if settings.allow_metrics else {}
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    mistakes, listeners = [], []
    with contextlib.ExitStack() as opened:
        for name, port in wanted.items():
            try:
                listener = socket.create_server((settings.host, port), family=family, backlog=BACKLOG)
            except OSError as err:
                mistakes.append(f"{name}={port}: cannot listen there: {err.strerror}")
            else:
                listener.setblocking(False)  # two workers of nginx see a connection, and one gets it
                listeners.append(opened.enter_context(listener))
        if mistakes:
            raise SettingsError(mistakes)
        yield tuple(listeners)


def new_prefix() -> str:
    """Return what the names of all that one `serve` makes in /dev/shm begin with."""
    return f"serve-{secrets.token_hex(8)}"


@contextlib.contextmanager
def held(prefix: str, folder: Path = SHARED_MEMORY) -> Iterator[None]:
    """Remove what a killed `serve` left in /dev/shm, which may outlive a container (a pod's volume, the host's own).
    Hold a lock for as long as this one lives, so that others leave its files alone."""
    for lock in folder.glob(f"lock-serve-{'[0-9a-f]' * 16}"):
        with contextlib.suppress(OSError), lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(lock.name.removeprefix("lock-"), folder)
    with contextlib.ExitStack() as locked:
        with contextlib.suppress(OSError):  # a full or missing /dev/shm has its own warning
            lock_file = locked.enter_context((folder / f"lock-{prefix}").open("xb"))
            fcntl.flock(lock_file, fcntl.LOCK_EX)
            locked.callback(_remove, prefix, folder)
        yield


def _remove(prefix: str, folder: Path) -> None:
    for file in folder.iterdir():
        if file.name.startswith((prefix, f"lock-{prefix}")):
            with contextlib.suppress(OSError):
                file.unlink()
