"""Configures gunicorn, which reads settings and hooks from this module by their names
(--config=python:serving.front.gunicorn_config)."""

import gc
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client.multiprocess import mark_process_dead

from serving.front.gunicorn_reader import pre_request as pre_request
from serving.front.logs import JsonLogger
from serving.front.monitoring import MULTIPROCESS
from serving.front.services import Services

logger_class = JsonLogger
# Ignore X-Forwarded headers. By default, gunicorn rejects contradictory ones with an HTML page.
secure_scheme_headers: dict[str, str] = {}
RESERVED = 64 * 1024  # bytes to reserve for each metrics file; enough for five models with clients
# How long a thread waits for the GIL before it asks the other thread to release it. Python's
# default is 5 ms, which is too long: a small request waits for the GIL about 20 times.
SWITCH_SECONDS = 0.0005
# The garbage collector's thresholds. Only the last one differs from Python's default, which is 10.
# With that, the collector visits all lists again and again while a large JSON text is parsed, and
# parsing 1.9 million lists took 0.7 s instead of 0.1 s, while all other threads waited.
GARBAGE = (700, 10, 1000)
# The niceness of workers for large bodies. If such a worker and one for small bodies compete for a
# processor, the former gets about a tenth of the time that the latter gets.
LARGE_NICE = 10


def on_starting(server: Any) -> None:
    """Remove the counts and the files in /dev/shm that a previous gunicorn left behind."""
    _services(server).admission.clear()
    _services(server).gateway.shared_memory.remove_files()


def pre_fork(server: Any, worker: Any) -> None:
    """Choose the row in which the new worker counts requests. Exclude the objects that exist before
    the fork from the worker's garbage collection, which would otherwise take 0.2 s when the worker
    ends."""
    _services(server).admission.add_worker(worker.age)
    gc.freeze()


def post_fork(_server: Any, _worker: Any) -> None:
    """Shorten the time for which the new worker's threads wait for the GIL and for the garbage
    collector."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(*GARBAGE)


def post_worker_init(worker: Any) -> None:
    _reserve_metrics_files()
    services = _services(worker)
    _choose_socket(worker, services)
    threading.Thread(target=services.trim_memory, name="trim", daemon=True).start()


def child_exit(server: Any, worker: Any) -> None:
    """Clean up after a worker that has ended. Called in gunicorn's master process."""
    _services(server).admission.remove_worker(worker.age)
    _services(server).gateway.shared_memory.remove_files(worker.pid)
    mark_process_dead(worker.pid)


def _choose_socket(worker: Any, services: Services) -> None:
    """Make the worker accept either only requests with large bodies or only other requests. The row
    in which the worker counts requests decides: the first SERVE_WORKERS rows belong to workers for
    large bodies, and a new worker gets the first row that is free. Limit the connections of a
    worker for large bodies, and lower its priority."""
    settings = services.settings
    if services.admission.row < settings.workers:
        path = settings.large_socket
        worker.worker_connections = settings.large_connections
        os.nice(LARGE_NICE)
    else:
        path = settings.gunicorn_socket
    sockets = {sock.getsockname(): sock for sock in worker.sockets}
    worker.sockets = [sockets.pop(str(path))]
    for sock in sockets.values():
        sock.close()


def _reserve_metrics_files() -> None:
    """Reserve disk space for this worker's metrics. prometheus_client maps the files into memory.
    If the disk is full, the kernel kills a process that writes to a page of a mapped file for which
    no space was reserved."""
    for kind in ("counter", "histogram"):
        path = Path(os.environ[MULTIPROCESS], f"{kind}_{os.getpid()}.db")
        # if the disk is full already, the worker starts without the reservation
        with suppress(OSError), path.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVED)


def _services(process: Any) -> Services:
    """Return the shared objects of the app, which gunicorn's master has loaded (--preload)."""
    services: Services = process.app.wsgi().extensions["serving"]
    return services
