"""Reserves resources of the machine at startup: open files (`ulimit -n`), listening sockets, and
names in /dev/shm."""

import contextlib
import fcntl
import os
import resource
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from serving.settings.setting import SettingsError
from serving.settings.settings import Settings

# open files that a process needs besides those for requests, such as logs, pipes and sockets
OWN_FILES = 64
# Open files that a request needs in nginx: the caller's connection, the connection to gunicorn, and
# a file for a large body. In gunicorn it needs fewer.
FILES_PER_REQUEST = 3
FEWEST_FILES = 128  # with a lower limit, tritonserver cannot start with a model
MOST_FILES = 65536  # the limit of open files, unless more are needed
BACKLOG = 1024  # connections that may wait to be accepted; the same as in nginx.conf
SHARED_MEMORY = Path("/dev/shm")


def set_file_limit(max_concurrency: int) -> int:
    """Set the limit of open files for this process and all that it starts: to MOST_FILES or, if
    `max_concurrency` requests need more, to the number that they need, but not above the hard
    limit. Return the new limit. Raise SettingsError if the hard limit is too low for them."""
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


# how error messages name a port's variables, if it has several
PORT_VARIABLES = {"SAGEMAKER_BIND_TO_PORT": "PORT or SAGEMAKER_BIND_TO_PORT"}


@contextlib.contextmanager
def listening_sockets(settings: Settings) -> Iterator[tuple[socket.socket, ...]]:
    """Yield a listening socket for each public port. nginx inherits these sockets, so that
    connections are not refused while nginx is restarted. Raise a SettingsError that lists all ports
    that cannot be used."""
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
                    f"cannot listen on port {port} (SERVE_HOST={settings.host}): {reason}; choose "
                    f"another with {PORT_VARIABLES.get(name, name)}"
                )
            else:
                # all nginx workers try to accept a new connection, and all but one must not block
                listener.setblocking(False)
                listeners.append(opened.enter_context(listener))
        if mistakes:
            raise SettingsError(mistakes)
        yield tuple(listeners)


def new_prefix() -> str:
    """Return a new, unique prefix for the names of this server's files in /dev/shm."""
    return f"serve-{secrets.token_hex(8)}"


@contextlib.contextmanager
def shared_memory_lock(prefix: str, folder: Path = SHARED_MEMORY) -> Iterator[None]:
    """Remove files that killed servers have left in /dev/shm. They can outlive a container if it
    uses its host's /dev/shm, or if /dev/shm is a volume of its pod. Inside the `with` block, hold a
    lock that keeps other servers from removing this server's files, whose names begin with
    `prefix`. At the end of the block, remove these files."""
    for lock in folder.glob(f"lock-serve-{'[0-9a-f]' * 16}"):
        with contextlib.suppress(OSError), lock.open("r+b") as file:
            # fails if the server that created the lock file is still running
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_files(lock.name.removeprefix("lock-"), folder)
    with contextlib.ExitStack() as at_the_end:
        with contextlib.suppress(OSError):  # /dev/shm may be full, or missing (`serve` warns then)
            lock_file = at_the_end.enter_context((folder / f"lock-{prefix}").open("xb"))
            fcntl.flock(lock_file, fcntl.LOCK_EX)
            at_the_end.callback(_remove_files, prefix, folder)
        yield


def _remove_files(prefix: str, folder: Path) -> None:
    """Remove the files of the server with this prefix, including its lock file."""
    for file in folder.iterdir():
        if file.name.startswith((prefix, f"lock-{prefix}")):
            with contextlib.suppress(OSError):
                file.unlink()
