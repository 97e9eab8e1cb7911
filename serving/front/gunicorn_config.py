"""gunicorn's hooks, which it finds by their names
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
# gunicorn would answer contradictory X-Forwarded headers with HTML, although nothing here reads
# them
secure_scheme_headers: dict[str, str] = {}
RESERVED = 64 * 1024  # bytes of each file of metrics: enough for about ten models
# How long a thread waits for the GIL before it asks the other thread to release it. Python's
# default is 5 ms. A small request waits for the GIL about 20 times.
SWITCH_SECONDS = 0.0005
# The garbage collector's thresholds. Only the last one differs from Python's default, 10, with
# which the collector visits all lists again and again while a large JSON text is parsed, and all
# threads wait: parsing 1.9 million lists took 0.7 s instead of 0.1 s.
GARBAGE = (700, 10, 1000)
# The niceness of workers for large bodies. Such a worker gets about a tenth of the processor time
# of a worker for small bodies that competes with it.
LARGE_NICE = 10


def on_starting(server: Any) -> None:
    _services(server).admission.clear()
    _services(server).gateway.shared_memory.remove_files()


def pre_fork(server: Any, worker: Any) -> None:
    """Exclude the imported modules from the workers' garbage collection, which took 0.2 s when a
    worker ended."""
    _services(server).admission.add_worker(worker.age)
    gc.freeze()


def post_fork(_server: Any, _worker: Any) -> None:
    """Limit how long a worker's threads wait for each other: for the GIL and the garbage
    collector."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(*GARBAGE)


def post_worker_init(worker: Any) -> None:
    _reserve_files()
    services = _services(worker)
    _choose_socket(worker, services)
    threading.Thread(target=services.trim_memory, name="trim", daemon=True).start()


def child_exit(server: Any, worker: Any) -> None:
    """Clean up after a worker that has ended. Runs in gunicorn's master."""
    _services(server).admission.remove_worker(worker.age)
    _services(server).gateway.shared_memory.remove_files(worker.pid)
    mark_process_dead(worker.pid)


def _choose_socket(worker: Any, services: Services) -> None:
    """Let the worker accept either only large bodies or only others. Workers that count in the
    first rows accept the large ones, so a worker that has ended is replaced by one of the same
    kind."""
    settings = services.settings
    own = settings.gunicorn_socket
    if services.admission.row < settings.workers:
        own = settings.large_socket
        worker.worker_connections = settings.large_connections
        os.nice(LARGE_NICE)
    sockets = {sock.getsockname(): sock for sock in worker.sockets}
    worker.sockets = [sockets.pop(str(own))]
    for sock in sockets.values():
        sock.close()


def _reserve_files() -> None:
    """Reserve disk space for this worker's metrics. prometheus_client maps its files into memory,
    and the kernel kills a process that writes to a mapped page for which the disk has no space."""
    for kind in ("counter", "histogram"):
        path = Path(os.environ[MULTIPROCESS], f"{kind}_{os.getpid()}.db")
        with suppress(OSError), path.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVED)


def _services(process: Any) -> Services:
    """Return the app's shared objects, which --preload created in the master."""
    services: Services = process.app.wsgi().extensions["serving"]
    return services
