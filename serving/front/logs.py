"""The log lines of gunicorn and of the Flask app: JSON, with the request's id and without payloads.

`serve` reads them (serving/pid1/log.py). All workers write to one pipe, which keeps a line whole up
to 4,096 bytes, so longer lines are cut. An exception's message may quote what a caller sent (`could
not convert string to float: '…'`), so a trace has types, files and lines; it has the messages too
if SERVE_LOG_LEVEL is debug.
"""

import json
import logging
import select
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from flask import has_request_context
from gunicorn.glogging import Logger

from serving.front.incoming import incoming

OURS = ("predictor", "serving", "clients")
LONGEST_MESSAGE = 1000  # characters: a caller's name of a model can be long


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON. `messages` says whether the messages of exceptions are
    shown."""

    def __init__(self, messages: bool = False) -> None:
        super().__init__()
        self._messages = messages

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "process": "gunicorn",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:LONGEST_MESSAGE],
        }
        if request_id := getattr(record, "request_id", "") or (
            incoming().id if has_request_context() else ""
        ):
            line["request_id"] = request_id
        if record.exc_info and (error := record.exc_info[1]):
            line["exception"] = type(error).__name__
            line["trace"] = "\n".join(map(self._describe, _causes(error)))
        while len(text := json.dumps(line, separators=(",", ":"))) >= select.PIPE_BUF:
            longest = max(line, key=lambda name: len(line[name]))
            text = line[longest]
            line[longest] = text[: len(text) // 2]
        return text

    def _describe(self, error: BaseException) -> str:
        frames = traceback.extract_tb(error.__traceback__)
        message = f": {error}" if self._messages else ""
        lines = [f"{type(error).__name__}{message}"]
        for frame in frames:
            lines.append(f"  {frame.filename}:{frame.lineno} in {frame.name}")
        return "\n".join(lines)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception, then each one that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


class JsonLogger(Logger):  # type: ignore[misc]
    """Writes all lines to stderr by one handler: gunicorn's, ours from `loglevel` on, and other
    packages' from warning on."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter(messages=cfg.loglevel == "debug"))
        self.error_log.handlers = [handler]
        logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
        for name in OURS:
            logging.getLogger(name).setLevel(cfg.loglevel.upper())
