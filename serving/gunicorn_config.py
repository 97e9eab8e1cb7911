"""What gunicorn's command line cannot say: JSON log lines, and what becomes of an ended worker's counts.

gunicorn reads these names (--config python:serving.gunicorn_config).
"""

from typing import Any

from gunicorn.glogging import Logger

from serving import logs, metrics
from serving.services import Services


class JsonLogger(Logger):  # type: ignore[misc]
    """gunicorn's own lines go the way of ours."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.handlers = [logs.configure(cfg.loglevel)]


logger_class = JsonLogger


def on_starting(_server: Any) -> None:
    metrics.bury_others()


def post_worker_init(worker: Any) -> None:
    services: Services = worker.wsgi.extensions["serving"]
    services.direct_log.start()
    services.idle_trim.start()


def child_exit(_server: Any, worker: Any) -> None:
    """Runs in gunicorn's master."""
    metrics.bury(worker.pid)
