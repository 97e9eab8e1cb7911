"""Formats the log lines of gunicorn and the Flask app: JSON, with the request's id and without
payloads.

`serve` reads the lines (serving/pid1/log.py). All workers write to the same pipe, which keeps only
lines of up to 4,096 bytes intact, so longer lines are shortened.

A trace contains only types, files, line numbers and functions, because the message of an exception
may quote what a caller sent (`could not convert string to float: '…'`). With SERVE_LOG_LEVEL=debug
it contains the messages too.
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
LONGEST_MESSAGE = 1000  # characters; a message may quote a caller's long model name


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON. If `messages` is true, the trace contains the
    messages of exceptions."""

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
        if hasattr(record, "request_id"):
            line["request_id"] = record.request_id
        elif has_request_context():
            line["request_id"] = incoming().id
        error = record.exc_info[1] if record.exc_info else None
        if error:
            line["exception"] = type(error).__name__
            line["trace"] = "\n".join(map(self._trace, _causes(error)))
        text = _as_json(line)
        while len(text) >= select.PIPE_BUF:
            longest = max(line, key=lambda name: len(line[name]))
            line[longest] = line[longest][: len(line[longest]) // 2]
            text = _as_json(line)
        return text

    def _trace(self, error: BaseException) -> str:
        frames = traceback.extract_tb(error.__traceback__)
        message = f": {error}" if self._messages else ""
        lines = [f"{type(error).__name__}{message}"]
        for frame in frames:
            lines.append(f"  {frame.filename}:{frame.lineno} in {frame.name}")
        return "\n".join(lines)


def _as_json(line: dict[str, str]) -> str:
    return json.dumps(line, separators=(",", ":"))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception, its cause or else its context, the cause or context of that, etc."""
    while error is not None:
        yield error
        context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or context


class JsonLogger(Logger):  # type: ignore[misc]
    """Writes all log lines to stderr through one handler: those of gunicorn, those of this project
    from the level `loglevel` up, and those of other packages from the level warning up."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter(messages=cfg.loglevel == "debug"))
        self.error_log.handlers = [handler]
        logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
        for name in OURS:
            logging.getLogger(name).setLevel(cfg.loglevel.upper())
