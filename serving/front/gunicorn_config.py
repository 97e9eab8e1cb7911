"""What gunicorn's command line cannot say: JSON log lines, and what becomes of an ended worker's memory.

gunicorn reads these names (--config python:serving.front.gunicorn_config).
"""

import gc
from typing import Any

from gunicorn.glogging import Logger

from serving.front import logs
from serving.front.beat import Beat
from serving.front.services import Services


class JsonLogger(Logger):  # type: ignore[misc]
    """gunicorn's own lines go the way of ours."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.handlers = [logs.configure(cfg.loglevel)]


logger_class = JsonLogger


def on_starting(server: Any) -> None:
    _services(server).gateway.shared_memory.remove_files()


def pre_fork(_server: Any, _worker: Any) -> None:
    """What the app has imported stays as long as the workers: none goes through it for garbage, as each did at its end,
    in 0.2 s of processor time."""
    gc.freeze()


def post_worker_init(worker: Any) -> None:
    place = _services(worker).metrics.place()
    _services(worker).in_flight.begin_worker(place)
    _services(worker).bulkhead.begin_worker(place)
    _services(worker).door_log.start()
    _services(worker).idle_trim.start()
    _services(worker).keeper.start()
    Beat(_services(worker).beats / str(worker.pid), worker.tmp.last_update).start()


def child_exit(_server: Any, worker: Any) -> None:
    """Runs in gunicorn's master."""
    _services(worker).gateway.shared_memory.remove_files(worker.pid)


def _services(of: Any) -> Services:
    """The app's, which --preload has made in the master."""
    found: Services = of.app.wsgi().extensions["serving"]
    return found
