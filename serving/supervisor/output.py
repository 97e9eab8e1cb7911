"""The log: what the processes write and what `serve` itself says, line by line to one file descriptor."""

import contextlib
import json
import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from serving.host.status import LogError

LINE_LIMIT = 16 * 1024
CHUNK = 64 * 1024  # the size of a pipe's buffer
OUTPUT_END_TIMEOUT = 1.0
OUTPUT_PATIENCE = 1.0  # seconds for a reader of the log that is slow
ERRORS_KEPT = 10
LONGEST_ERROR = 300  # characters of one that is kept
# Nobody who sends a request writes into a terminal, or begins a line of the log. Escaped as in JSON, which lines are.
ESCAPED = {code: f"\\u{code:04x}" for code in (*range(9), *range(10, 32), *range(127, 160), 0x2028, 0x2029)}
ERROR_LINE = re.compile(r"^E\d{4} |\b(error|exception|fatal|emerg|critical|failed)\b|Error\b", re.I)
SEVERE = ("error", "critical")


class Output:
    """Writes whole lines from many threads to one file descriptor, each with the name of its process.

    A line that is a JSON object stays as it is: it names its process itself. Serving is worth more than its log: where
    nobody reads, lines are dropped, so that neither the processes nor our own loop wait. Their number is told to a
    reader that comes back. The last errors are kept, for `serve --status`.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._dropped = 0
        self._errors: deque[LogError] = deque(maxlen=ERRORS_KEPT)

    def write(self, name: str, *lines: str, level: str = "info") -> None:
        """`level` is that of our own lines."""
        data = "".join(f"{line}\n" if is_json(line) else f"{name} | {line}\n" for line in lines).encode()
        if level in SEVERE:
            self.note(name, "; ".join(lines))
        with self._lock:
            told = f"\nserve | {self._dropped} lines were dropped: nobody read the log\n" if self._dropped else ""
            if self._written(told.encode() + data):
                self._dropped = 0
            else:
                self._dropped += len(lines)

    def note(self, name: str, text: str) -> None:
        """An error."""
        self._errors.append(LogError(time.time(), name, text.translate(ESCAPED)[:LONGEST_ERROR]))

    def errors(self) -> list[LogError]:
        """The last ones, the latest last."""
        return list(self._errors)

    def _written(self, data: bytes) -> bool:
        """In parts that a pipe takes whole once it takes any. After the first wait in vain there is no other."""
        patience = 0.0 if self._dropped else OUTPUT_PATIENCE
        with contextlib.suppress(OSError):
            while data and select.select([], [self._descriptor], [], patience)[1]:
                data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
        return not data


class Pump(threading.Thread):
    """Reads a process's output to its end: drops noise, writes the rest to `output`, keeps the last error."""

    def __init__(self, name: str, stream: IO[bytes], output: Output, noise: Sequence[str]) -> None:
        super().__init__(name=f"pump-{name}", daemon=True)
        self._source, self._stream, self._output = name, stream, output
        self._noise = [re.compile(pattern) for pattern in noise]
        self._last_line = self._last_error = ""

    def run(self) -> None:
        with self._stream:
            for lines in read_lines(self._stream):
                kept = [line for line in lines if is_json(line) or not any(each.search(line) for each in self._noise)]
                for line in kept:
                    self._remember(line)
                self._output.write(self._source, *kept)

    def _remember(self, line: str) -> None:
        document = read_document(line)
        said = line.strip() if document is None else json_message(document)
        is_error = bool(ERROR_LINE.search(said))
        if said:
            self._last_line = said
        if is_error:
            self._last_error = said
        if is_error if document is None else document.get("level") in SEVERE:
            self._output.note(self._source, said or request_in_words(document or {}))

    def last_error(self) -> str:
        self.join(OUTPUT_END_TIMEOUT)
        return self._last_error or self._last_line


def is_json(line: str) -> bool:
    return line.startswith('{"') and line.endswith("}")


def read_document(line: str) -> dict[str, Any] | None:
    """The object that a line is, None where it is none; it is read only if it has a message or tells of an error."""
    if not is_json(line):
        return None
    try:
        return dict(json.loads(line)) if '"message"' in line or '"level":"error"' in line else {}
    except ValueError:
        return None


def json_message(document: Mapping[str, Any]) -> str:
    """Level and message of a log line of serving/front/logs.py; "" for a request in nginx's log."""
    return f"{document['level']}: {document['message']}" if {"level", "message"} <= document.keys() else ""


def request_in_words(document: Mapping[str, Any]) -> str:
    """A request in nginx's log."""
    return " ".join(str(document[key]) for key in ("method", "path", "status", "code", "model") if document.get(key))


def read_lines(stream: IO[bytes]) -> Iterator[list[str]]:
    """The lines that have come, without their ends; cut after 16 kB, undecodable bytes replaced, controls escaped."""
    rest = b""
    while data := os.read(stream.fileno(), CHUNK):
        *whole, rest = (rest + data).split(b"\n")
        rest = rest[: LINE_LIMIT + 1]
        yield [_text(line) for line in whole]
    if rest:
        yield [_text(rest)]


def _text(line: bytes) -> str:
    return line[:LINE_LIMIT].decode("utf-8", "replace").rstrip("\r").translate(ESCAPED)
