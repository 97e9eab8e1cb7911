"""gunicorn's hooks, which it finds by their names
(--config=python:serving.front.gunicorn_config)."""

import gc
import os
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
# gunicorn would answer X-Forwarded headers that contradict each other with HTML; we read none
secure_scheme_headers: dict[str, str] = {}
RESERVED = 64 * 1024  # bytes of each file of metrics: enough for about ten models


def on_starting(server: Any) -> None:
    _services(server).admission.clear()
    _services(server).gateway.shared_memory.remove_files()


def pre_fork(server: Any, worker: Any) -> None:
    """Exclude the imported modules from garbage collection in the workers, because it took 0.2 s
    when a worker ended."""
    _services(server).admission.add_worker(worker.age)
    gc.freeze()


def post_worker_init(worker: Any) -> None:
    _reserve_files()
    threading.Thread(target=_services(worker).trim_memory, name="trim", daemon=True).start()


def child_exit(server: Any, worker: Any) -> None:
    """Clean up after a worker that has ended. Runs in gunicorn's master."""
    _services(server).admission.remove_worker(worker.age)
    _services(server).gateway.shared_memory.remove_files(worker.pid)
    mark_process_dead(worker.pid)


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
