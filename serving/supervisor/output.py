"""The log: what the processes write and what `serve` itself says, line by line to one file descriptor."""

import contextlib
import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import IO

from serving.host.status import LogError
from serving.supervisor.entries import Entries
from serving.supervisor.log_lines import (
    ERROR_LINE,
    ESCAPED,
    FORMATS,
    SEVERE,
    is_json,
    json_message,
    read_document,
    read_entry,
    request_in_words,
)

LINE_LIMIT = 16 * 1024
CHUNK = 64 * 1024  # the size of a pipe's buffer
OUTPUT_END_TIMEOUT = 1.0
OUTPUT_PATIENCE = 1.0  # seconds for a reader of the log that is slow
ERRORS_KEPT = 10
LONGEST_ERROR = 300  # characters of one that is kept
ENTRY_PAUSE = 0.1  # seconds after which nothing is added to an entry of several lines


class Output:
    """Writes whole lines from many threads to one file descriptor, each with the name of its process.

    `log_format` is one of log_lines.py. Serving is worth more than its log: where nobody reads, lines are dropped, so
    that neither the processes nor our own loop wait. Their number is told to a reader that comes back. The last errors
    are kept, for `serve --status`.
    """

    def __init__(self, descriptor: int, log_format: str = "mixed") -> None:
        self._descriptor, self._format = descriptor, FORMATS[log_format]
        self.has_entries = log_format != "mixed"  # of several lines
        self._lock = threading.Lock()
        self._dropped = 0
        self._errors: deque[LogError] = deque(maxlen=ERRORS_KEPT)

    def write(self, name: str, *lines: str, level: str = "") -> None:
        """`level` is what is known of it."""
        data = "".join(f"{self._format(name, line, level)}\n" for line in lines).encode()
        if level in SEVERE:
            self.note(name, "; ".join(lines))
        with self._lock:
            text = f"{self._dropped} lines were dropped: nobody read the log"
            told = f"\n{self._format('serve', text, 'warning')}\n" if self._dropped else ""
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

    def tell_crashes(self) -> None:
        """From now on what ends us or one of our threads is an entry like others."""
        import traceback  # which takes time of the start

        def tell(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
            self.write("serve", "".join(traceback.format_exception(kind, error, trace)).rstrip(), level="critical")

        sys.excepthook = tell
        threading.excepthook = lambda crash: tell(crash.exc_type, crash.exc_value, crash.exc_traceback)

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
        self._entries = Entries()
        self._last_line = self._last_error = ""

    def run(self) -> None:
        with self._stream:
            for lines in read_lines(self._stream, lambda: ENTRY_PAUSE if self._entries.is_open else None):
                kept = [line for line in lines if is_json(line) or not any(each.search(line) for each in self._noise)]
                for line in kept:
                    self._remember(line)
                self._write(kept if lines else None)
            self._write(None)

    def _write(self, lines: list[str] | None) -> None:
        """None: nothing has come for a while, or nothing will."""
        if self._output.has_entries:
            lines = self._entries.end() if lines is None else self._entries.add(lines)
        if lines:
            self._output.write(self._source, *lines)

    def _remember(self, line: str) -> None:
        document = read_document(line)
        said = line.strip() if document is None else json_message(document)
        is_error = bool(ERROR_LINE.search(said))
        if said:
            self._last_line = said
        if is_error:
            self._last_error = said
        if is_error if document is None else document.get("level") in SEVERE:
            text = read_entry(line).message.partition("\n")[0] if document is None else said
            self._output.note(self._source, text or request_in_words(document or {}))

    def last_error(self) -> str:
        self.join(OUTPUT_END_TIMEOUT)
        return self._last_error or self._last_line


def read_lines(stream: IO[bytes], patience: Callable[[], float | None] = lambda: None) -> Iterator[list[str]]:
    """The lines that have come, without their ends; cut after 16 kB, undecodable bytes replaced, controls escaped. An
    empty list where nothing has come for so many seconds."""
    rest = b""
    while True:
        if not select.select([stream], [], [], patience())[0]:
            yield []
            continue
        if not (data := os.read(stream.fileno(), CHUNK)):
            break
        *whole, rest = (rest + data).split(b"\n")
        rest = rest[: LINE_LIMIT + 1]
        if whole:
            yield [_text(line) for line in whole]
    if rest:
        yield [_text(rest)]


def _text(line: bytes) -> str:
    return line[:LINE_LIMIT].decode("utf-8", "replace").rstrip("\r").translate(ESCAPED)
