"""Reserves what startup needs: the limit of open files (`ulimit -n`), listening sockets, and names
in /dev/shm."""

import contextlib
import fcntl
import os
import resource
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from serving.settings.setting import SettingsError
from serving.settings.table import Settings

# open files of a process without requests: logs, pipes, sockets, libraries, metrics
OWN_FILES = 64
# open files per request: in nginx the caller's connection, the connection to gunicorn, and a large
# body; gunicorn needs fewer
FILES_PER_REQUEST = 3
FEWEST_FILES = 128  # with fewer, tritonserver does not start with a model
MOST_FILES = 65536  # the usual limit of open files, unless more are needed
BACKLOG = 1024  # connections waiting to be accepted, as in nginx.conf
SHARED_MEMORY = Path("/dev/shm")


def raise_file_limit(max_concurrency: int) -> int:
    """Raise the limit of open files, up to the hard limit, for all processes that are started from
    now on. Return the new limit. Raise SettingsError if it is too low for `max_concurrency`
    requests."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = max(FEWEST_FILES, OWN_FILES + FILES_PER_REQUEST * max_concurrency)
    limit = max(needed, MOST_FILES)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    if limit < needed:
        problem = (
            f"SERVE_MAX_CONCURRENCY={max_concurrency} needs {needed} open files, and only {limit} "
            f"are allowed (ulimit -n): start the container with --ulimit nofile={needed}, or lower "
            "it"
        )
        raise SettingsError([problem])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[tuple[socket.socket, ...]]:
    """Yield a listening socket for each public port. nginx inherits them, so callers wait while
    nginx restarts. Raise a SettingsError that lists all ports that cannot be used."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    mistakes = []
    listeners = []
    with contextlib.ExitStack() as opened:
        for name, port in settings.ports.items():
            try:
                listener = socket.create_server(
                    (settings.host, port), family=family, backlog=BACKLOG
                )
            except OSError as err:
                reason = os.strerror(err.errno or 0)
                mistakes.append(
                    f"{name}={port}: cannot listen there (SERVE_HOST={settings.host}): {reason}; "
                    "choose another port"
                )
            else:
                # all nginx workers see a new connection, but only one gets it
                listener.setblocking(False)
                listeners.append(opened.enter_context(listener))
        if mistakes:
            raise SettingsError(mistakes)
        yield tuple(listeners)


def new_prefix() -> str:
    """Return a new prefix for the names of one `serve`'s files in /dev/shm."""
    return f"serve-{secrets.token_hex(8)}"


@contextlib.contextmanager
def held(prefix: str, folder: Path = SHARED_MEMORY) -> Iterator[None]:
    """Remove the files that a killed `serve` left in /dev/shm, which may outlive a container (if it
    is a pod's volume or the host's own). Hold a lock while this `serve` is running, so that others
    do not remove its files."""
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
