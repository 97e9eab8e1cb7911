"""The log of `serve` and of the processes that it runs: JSON lines, or text if the log goes to a
terminal."""

import contextlib
import json
import os
import re
import select
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import IO, Any

LINE_LIMIT = 16 * 1024
CHUNK = 64 * 1024  # the capacity of a pipe
ENTRY = '{"'  # the beginning of nginx's and gunicorn's entries, which are JSON
OUTPUT_END_TIMEOUT = 1.0
OUTPUT_PATIENCE = 1.0  # seconds that the log's reader may pause before lines are dropped
# Characters with which a caller could control a terminal or forge a log line. They are escaped as
# in JSON, the format of most lines.
CONTROLS = (*range(9), *range(10, 32), *range(127, 160), 0x2028, 0x2029)
ESCAPED = {code: f"\\u{code:04x}" for code in CONTROLS}
ERROR_LINE = re.compile(r"^E\d{4} |\b(error|exception|fatal|emerg|critical|failed)\b|Error\b", re.I)
LEVELS = {
    "I": "info",
    "W": "warning",
    "E": "error",
    "F": "critical",
    "notice": "info",
    "warn": "warning",
}
LEVELS |= dict.fromkeys(("crit", "alert", "emerg"), "critical")
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
    """Convert the line to a JSON object, unless it already is one. If `level` is "", guess it."""
    if read_object(line):
        return line.translate(ESCAPED)
    level, logger, message = split_prefix(line, level)
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "process": process,
        "level": level,
        "message": message,
    }
    if logger:
        entry["logger"] = logger
    return json.dumps(entry, separators=(",", ":")).translate(ESCAPED)


def as_text(process: str, line: str, level: str = "") -> str:
    """Format the line for a terminal: time, process, text. Keep only the important fields of
    nginx's and gunicorn's entries."""
    entry = read_object(line)
    request = f"request {entry.get('request_id', '')}"
    if "status" in entry:  # an entry of the access log
        words = (entry.get(name) for name in ("method", "path", "status", "code", "model"))
        call = " ".join(str(word) for word in words if word)
        # escaped here too, so that a line break in the path does not begin a line below
        message = f"{call} {entry.get('seconds', 0)} s, {request}".translate(ESCAPED)
        level = ""
    elif "message" in entry:
        level = str(entry.get("level", ""))
        message = str(entry["message"])
        if "request_id" in entry:
            message += f" ({request})"
        if entry.get("trace"):
            message += f"\n{entry['trace']}"
    else:
        level, _, message = split_prefix(line, level)
    urgency = "" if level in ("", "info") else f"{level.upper()}: "
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{now} {process} | {urgency}" + "\n    ".join(
        part.translate(ESCAPED) for part in message.split("\n")
    )


def split_prefix(line: str, level: str = "") -> tuple[str, str, str]:
    """Return a line's level, the source file that it names (or ""), and its message."""
    matches = (prefix.match(line) for prefix in PREFIXES)
    match = next(filter(None, matches), None)
    if match is None:
        return level or ("error" if ERROR_LINE.search(line) else "info"), "", line
    word = match["level"]
    message = line[match.end() :]
    # tritonserver's messages are JSON strings with escaped line breaks
    with contextlib.suppress(ValueError):
        message = (
            str(json.loads(message, strict=False)).strip() if message.startswith('"') else message
        )
    return LEVELS.get(word, word.lower()), match.groupdict().get("logger", ""), message


def read_object(line: str) -> dict[str, Any]:
    """Return the line's JSON object, or {} if the line is not one."""
    with contextlib.suppress(ValueError, RecursionError):
        if line.startswith(ENTRY) and line.endswith("}"):
            return dict(json.loads(line))
    return {}


class Output:
    """Writes whole lines to a file descriptor. Thread-safe. If nobody reads the log, lines are
    dropped so that the supervisor does not block. Their number is logged once the log is read
    again."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._format = as_text if os.isatty(descriptor) else as_json
        self._lock = threading.Lock()
        self._dropped = 0

    def write(self, process: str, *lines: str, level: str = "") -> None:
        """Write the lines. If the reader does not take them within OUTPUT_PATIENCE seconds, count
        them as dropped."""
        data = "".join(f"{self._format(process, line, level)}\n" for line in lines).encode()
        with self._lock:
            # do not wait again for a reader that is still stalled
            patience = 0.0 if self._dropped else OUTPUT_PATIENCE
            if self._dropped:
                text = f"{self._dropped} lines were dropped: nobody read the log"
                # the line break ends a line of which only a part was written
                data = f"\n{self._format('serve', text, 'warning')}\n".encode() + data
            # a pipe that is ready takes PIPE_BUF bytes without blocking (POSIX)
            with contextlib.suppress(OSError):
                while data and select.select([], [self._descriptor], [], patience)[1]:
                    data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
            is_dropped = bool(data)
            self._dropped = self._dropped + len(lines) if is_dropped else 0


class Pump(threading.Thread):
    """Reads a process's output to its end, drops the lines that match `noise`, and writes the
    others without the text that matches `omitted`. Lines that are JSON are not changed."""

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
        self._noise = [re.compile(pattern) for pattern in noise]
        self._omitted = re.compile(omitted) if omitted else None
        self._last_line = self._last_error = ""

    def run(self) -> None:
        with self._stream:
            for lines in read_lines(self._stream):
                shown = [self._shown(line) for line in lines if not self._is_noise(line)]
                for line in shown:
                    self._remember(line.strip())
                if shown:
                    self._output.write(self._process, *shown)

    def _is_noise(self, line: str) -> bool:
        return any(pattern.search(line) for pattern in self._noise)

    def _shown(self, line: str) -> str:
        if self._omitted is None or line.startswith(ENTRY):
            return line
        return self._omitted.sub("", line)

    def _remember(self, line: str) -> None:
        """Keep the line for `last_error`, unless it is an entry."""
        if not line or line.startswith(ENTRY):
            return
        self._last_line = line
        if ERROR_LINE.search(line):
            self._last_error = line

    def last_error(self) -> str:
        """Return the last line that looks like an error, or else the last line."""
        self.join(OUTPUT_END_TIMEOUT)
        return self._last_error or self._last_line


def read_lines(stream: IO[bytes]) -> Iterator[list[str]]:
    """Yield lines as they arrive. Truncate them to 16 KiB, and replace bytes that cannot be
    decoded."""
    rest = b""
    while data := os.read(stream.fileno(), CHUNK) or (rest and b"\n"):
        *whole, rest = (rest + data).split(b"\n")
        rest = rest[: LINE_LIMIT + 1]
        if whole:
            yield [line[:LINE_LIMIT].decode("utf-8", "replace").rstrip("\r") for line in whole]
