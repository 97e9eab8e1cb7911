"""Writes the log of `serve` and of the processes that it runs, as JSON lines, or as text if the log
goes to a terminal."""

import contextlib
import json
import os
import re
import select
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import IO, Any

LINE_LIMIT = 16 * 1024  # bytes of a line that are logged; the rest is dropped
CHUNK = 64 * 1024  # bytes to read at a time, as many as a pipe can hold
ENTRY = '{"'  # the beginning of a log entry in JSON, such as gunicorn's and nginx's access log
OUTPUT_END_TIMEOUT = 1.0  # seconds to wait for the end of a process's output
OUTPUT_PATIENCE = 1.0  # seconds for which the log's reader may pause before lines are dropped
# Characters with which a caller could control a terminal or forge a log line. They are escaped in
# the same way as in JSON.
CONTROLS = (*range(9), *range(10, 32), *range(127, 160), 0x2028, 0x2029)
ESCAPED = {code: f"\\u{code:04x}" for code in CONTROLS}
NOTHING = r"(?!)"  # a pattern that matches nothing
ERROR_LINE = re.compile(r"^E\d{4} |\b(error|exception|fatal|emerg|critical|failed)\b|Error\b", re.I)
# maps the names of log levels in tritonserver and nginx to ours, if they differ
LEVELS = {
    "I": "info",
    "notice": "info",
    "W": "warning",
    "warn": "warning",
    "E": "error",
    "F": "critical",
    "crit": "critical",
    "alert": "critical",
    "emerg": "critical",
}
PREFIXES = (
    # tritonserver's two log formats (--log-format)
    re.compile(
        r"(?:[\dT:.-]+Z )?(?P<level>[IWEF])(?:\d{4} [\d:.]+)? \d+ (?P<logger>[\w.-]+:\d+)\] ",
        re.ASCII,
    ),
    # nginx's error log
    re.compile(r"(?:\d{4}/\d\d/\d\d [\d:]+|nginx:) \[(?P<level>\w+)\] (?:\d+#\d+: )?"),
    re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR): "),  # the model manager
)


def as_json(process: str, line: str, level: str = "") -> str:
    """Convert a log line of `process` to a JSON object, unless it already is one. Escape control
    characters in both cases. `level` is used as in read_text."""
    if read_object(line):
        # between the tokens of JSON, an escape would be wrong
        return line.replace("\r", " ").translate(ESCAPED)
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    entry = {"time": now, "process": process, **read_text(line, level)}
    return json.dumps(entry, separators=(",", ":")).translate(ESCAPED)


def as_text(process: str, line: str, level: str = "") -> str:
    """Format a log line of `process` for a terminal, with the time and the process before the text.
    If the line is JSON, show only its important fields."""
    entry = read_object(line)
    if "message" not in entry and "status" not in entry:
        entry = read_text(line, level)
    level = str(entry.get("level", ""))
    request = f"request {entry.get('request_id', '')}"
    if "status" in entry:  # an entry of the access log
        values = (entry.get(name) for name in ("method", "path", "status", "code", "model"))
        call = " ".join(str(value) for value in values if value)
        # escape the path now, because line breaks in `message` are kept below
        message = f"{call} {entry.get('seconds', 0)} s, {request}".translate(ESCAPED)
        level = ""
    else:
        message = str(entry["message"])
        if "request_id" in entry:
            message += f" ({request})"
        if entry.get("trace"):
            message += f"\n{entry['trace']}"
    urgency = "" if level in ("", "info") else f"{level.upper()}: "
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    lines = (part.translate(ESCAPED) for part in message.split("\n"))
    return f"{now} {process} | {urgency}" + "\n    ".join(lines)


def read_text(line: str, level: str = "") -> dict[str, str]:
    """Return the fields of a log line that is not JSON: its level, its message and, if the line
    contains them, the source file and its line number as "logger". If the line does not contain
    its level, use `level` or, if that is "", guess it."""
    matches = [prefix.match(line) for prefix in PREFIXES]
    match = next(filter(None, matches), None)
    if match is None:
        guess = "error" if ERROR_LINE.search(line) else "info"
        return {"level": level or guess, "message": line}
    fields = match.groupdict()
    word = fields.pop("level")
    message = line[match.end() :]
    if message.startswith('"'):  # tritonserver's messages are JSON strings
        with contextlib.suppress(ValueError):
            message = str(json.loads(message, strict=False)).strip()
    return {"level": LEVELS.get(word, word.lower()), "message": message, **fields}


def read_object(line: str) -> dict[str, Any]:
    """Parse a log line that is a JSON object. Return {} if it is not."""
    with contextlib.suppress(ValueError, RecursionError):
        if line.startswith(ENTRY) and line.endswith("}"):
            return dict(json.loads(line))
    return {}


class Output:
    """Writes log lines to a file descriptor. Thread-safe. While no process reads the log, lines are
    dropped, so that the supervisor does not block for long. When the log is read again, a line says
    how many were dropped."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._format = as_text if os.isatty(descriptor) else as_json
        self._lock = threading.Lock()
        self._dropped = 0

    def write(self, process: str, *lines: str, level: str = "") -> None:
        """Write log lines of `process`, with `level` as in read_text. If the reader does not take
        all of them, because it pauses for more than OUTPUT_PATIENCE seconds, count all of them as
        dropped."""
        formatted = [self._format(process, line, level) for line in lines]
        data = "".join(f"{line}\n" for line in formatted).encode()
        with self._lock:
            # do not wait again for a reader that is still stalled
            patience = 0.0 if self._dropped else OUTPUT_PATIENCE
            if self._dropped:
                text = f"{self._dropped} lines were dropped: nobody read the log"
                notice = self._format("serve", text, "warning")
                # begin with a line break, because the last line may have been written only in part
                data = f"\n{notice}\n".encode() + data
            # Write at most PIPE_BUF bytes at a time, because a pipe that select reports as writable
            # accepts PIPE_BUF bytes without blocking (POSIX).
            with contextlib.suppress(OSError):
                while data and select.select([], [self._descriptor], [], patience)[1]:
                    written = os.write(self._descriptor, data[: select.PIPE_BUF])
                    data = data[written:]
            if data:
                self._dropped += len(lines)
            else:
                self._dropped = 0


class Pump(threading.Thread):
    """A thread that logs the output of a process. It drops lines that match `noise`, and removes
    text that matches `omitted` from the other lines unless they are JSON."""

    def __init__(
        self,
        process: str,
        stream: IO[bytes],
        output: Output,
        noise: Sequence[str],
        omitted: str = "",
    ) -> None:
        super().__init__(name=f"pump-{process}", daemon=True)
        self._process = process
        self._stream = stream
        self._output = output
        self._noise = re.compile("|".join(noise) or NOTHING)
        self._omitted = re.compile(omitted or NOTHING)
        self._last_line = self._last_error = ""

    def run(self) -> None:
        with self._stream:
            for lines in read_lines(self._stream):
                kept = [line for line in lines if not self._noise.search(line)]
                shown = [self._remember(line) for line in kept]
                if shown:
                    self._output.write(self._process, *shown)

    def _remember(self, line: str) -> str:
        """Remember the line for `last_error`, and return it without the omitted text. Return a line
        of JSON unchanged, and do not remember it."""
        if line.startswith(ENTRY):
            return line
        line = self._omitted.sub("", line)
        if stripped := line.strip():
            self._last_line = stripped
        if ERROR_LINE.search(stripped):
            self._last_error = stripped
        return line

    def last_error(self) -> str:
        """Wait briefly for the end of the output. Return the last line that looks like an error, or
        else the last line that is not empty, or "" if there is none. Lines of JSON do not count."""
        self.join(OUTPUT_END_TIMEOUT)
        return self._last_error or self._last_line


def read_lines(stream: IO[bytes]) -> Iterator[list[str]]:
    """Yield the lines of the stream as they arrive, in lists. Truncate each line to LINE_LIMIT
    bytes, and replace bytes that are not UTF-8."""
    rest = b""  # the beginning of a line whose end has not arrived yet
    while data := os.read(stream.fileno(), CHUNK):
        *complete, rest = (rest + data).split(b"\n")
        rest = rest[:LINE_LIMIT]
        if complete:
            yield [_decode(line) for line in complete]
    if rest:
        yield [_decode(rest)]


def _decode(line: bytes) -> str:
    return line[:LINE_LIMIT].decode("utf-8", "replace").rstrip("\r")
