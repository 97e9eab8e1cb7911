"""What gunicorn's command line cannot say: JSON log lines, how bodies are read, and an ended worker's leftovers.

gunicorn reads these names (--config python:serving.front.gunicorn_config).
"""

import gc
import io
from typing import Any

from gunicorn.glogging import Logger
from gunicorn.http.body import LengthReader
from prometheus_client.multiprocess import mark_process_dead

from serving.front import logs
from serving.front.metrics import reserve_files
from serving.front.services import Services


class JsonLogger(Logger):  # type: ignore[misc]
    """gunicorn's own lines go the way of ours."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.handlers = [logs.configure(cfg.loglevel)]


logger_class = JsonLogger


def on_starting(server: Any) -> None:
    _services(server).admission.clear()
    _services(server).gateway.shared_memory.remove_files()


def pre_fork(server: Any, worker: Any) -> None:
    """Keep the garbage collector of the workers away from what the app imported: at their end it took 0.2 s of
    processor time each."""
    _services(server).admission.add_worker(worker.age)
    gc.freeze()


class Body(io.RawIOBase):
    """A body of known length, received into the caller's buffer. gunicorn's own reader copies each part several times:
    1.7 instead of 0.7 ms of processor time for 3 MB, 17 instead of 5 for 25 MB."""

    def __init__(self, unreader: Any, length: int) -> None:
        super().__init__()
        self._unreader, self._left = unreader, length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        buffer = buffer[: self._left]
        if received := self._unreader.take_buffered():  # came with the headers
            size = min(len(received), len(buffer))
            buffer[:size] = received[:size]
            self._unreader.unread(received[size:])
        else:
            size = self._unreader.sock.recv_into(buffer)
        self._left -= size
        return size


def pre_request(_worker: Any, request: Any) -> None:
    """Runs before the app gets a request."""
    if isinstance(request.body.reader, LengthReader):
        request.body = io.BufferedReader(Body(request.unreader, request.body.reader.length))


def post_worker_init(worker: Any) -> None:
    reserve_files()
    _services(worker).idle_trim.start()


def child_exit(server: Any, worker: Any) -> None:
    """Runs in gunicorn's master."""
    _services(server).admission.remove_worker(worker.age)
    _services(server).gateway.shared_memory.remove_files(worker.pid)
    mark_process_dead(worker.pid)


def _services(of: Any) -> Services:
    """The app's, which --preload has made in the master."""
    found: Services = of.app.wsgi().extensions["serving"]
    return found
