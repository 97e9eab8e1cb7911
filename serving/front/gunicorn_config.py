"""What gunicorn's command line cannot say: log lines, how bodies are read, and an ended worker's leftovers.

gunicorn reads the names from JsonLogger on (--config python:serving.front.gunicorn_config).

Log lines of the Flask app and of gunicorn have the request's id and no payloads: JSON, or text on a terminal. Every
process of the container writes to the same pipe, which keeps a line whole up to 4,096 bytes: longer ones could be torn
by another process's line, so a line is cut to fit. The message of an exception may quote what a caller sent
(`could not convert string to float: '…'`), so a trace names types, files and lines; the messages are added when
SERVE_LOG_LEVEL is debug.
"""

import gc
import io
import json
import logging
import select
import sys
import threading
import traceback
from datetime import UTC, datetime
from typing import Any

from flask import has_request_context
from gunicorn.glogging import Logger
from gunicorn.http.body import LengthReader
from prometheus_client.multiprocess import mark_process_dead

from serving.front.incoming import incoming
from serving.front.metrics import reserve_files
from serving.front.services import Services

OURS = ("predictor", "serving", "clients")
LONGEST_MESSAGE = 1000  # characters: a caller's name of a model can be long


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON. `messages` says whether the messages of exceptions are shown."""

    def __init__(self, messages: bool = False) -> None:
        super().__init__()
        self._messages = messages

    def format(self, record: logging.LogRecord) -> str:
        line = self.fields(record)
        while len(text := json.dumps(line, separators=(",", ":"))) >= select.PIPE_BUF:
            longest = max(line, key=lambda name: len(line[name]))
            line[longest] = line[longest][: len(line[longest]) // 2]
        return text

    def fields(self, record: logging.LogRecord) -> dict[str, str]:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "process": "gunicorn",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:LONGEST_MESSAGE],
        }
        if request_id := getattr(record, "request_id", "") or _request_id():
            line["request_id"] = request_id
        return line | self._exception(record)

    def _exception(self, record: logging.LogRecord) -> dict[str, str]:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return {}
        chain = list(_causes(error))
        return {"exception": type(error).__name__, "trace": "\n".join(self._describe(cause) for cause in chain)}

    def _describe(self, error: BaseException) -> str:
        stack = traceback.extract_tb(error.__traceback__)
        frames = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in stack]
        said = f": {error}" if self._messages else ""
        return "\n".join([f"{type(error).__name__}{said}", *frames])


class TextFormatter(JsonFormatter):
    """Formats a record for a terminal. Control characters stay escaped: a caller may have sent them."""

    def format(self, record: logging.LogRecord) -> str:
        line = self.fields(record)
        said = json.dumps(line["message"])[1:-1]
        request = f" (request {line['request_id']})" if "request_id" in line else ""
        trace = [json.dumps(frame)[1:-1] for frame in line.get("trace", "").splitlines()]
        urgency = "" if record.levelno <= logging.INFO else f"{record.levelname}: "
        now = self.formatTime(record, "%Y-%m-%d %H:%M:%S")
        return "\n    ".join([f"{now} gunicorn | {urgency}{said}{request}", *trace])


def _request_id() -> str:
    """Of the request that this thread answers; "" outside of one."""
    return incoming().id if has_request_context() else ""


def _causes(error: BaseException | None) -> list[BaseException]:
    """The exception and those it came from, the last one first."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain


def configure(level: str) -> logging.Handler:
    """Ours from `level` on and other packages' from warning on, to stderr; the handler that writes them."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = TextFormatter if sys.stderr.isatty() else JsonFormatter
    handler.setFormatter(formatter(messages=level == "debug"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
    return handler


class JsonLogger(Logger):  # type: ignore[misc]
    """gunicorn's own lines go the way of ours."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.handlers = [configure(cfg.loglevel)]


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
    threading.Thread(target=_services(worker).trim_when_idle, name="idle-trim", daemon=True).start()


def child_exit(server: Any, worker: Any) -> None:
    """Runs in gunicorn's master."""
    _services(server).admission.remove_worker(worker.age)
    _services(server).gateway.shared_memory.remove_files(worker.pid)
    mark_process_dead(worker.pid)


def _services(of: Any) -> Services:
    """The app's, which --preload has made in the master."""
    found: Services = of.app.wsgi().extensions["serving"]
    return found
