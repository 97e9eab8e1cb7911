"""An entry of the log in each format of SERVE_LOG_FORMAT.

What the processes write is JSON, of nginx's requests and of all that gunicorn says, or text of their own; only a
traceback, or what is indented below a line, has several lines.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

LONGEST_MESSAGE = 8000  # characters: Docker splits lines of 16 kB and more
STAGES = ("decode", "preprocess", "triton", "postprocess")
# Nobody who sends a request writes into a terminal, or begins a line of the log. Escaped as in JSON, which lines are.
ESCAPED = {code: f"\\u{code:04x}" for code in (*range(9), *range(10, 32), *range(127, 160), 0x2028, 0x2029)}
ERROR_LINE = re.compile(r"^E\d{4} |\b(error|exception|fatal|emerg|critical|failed)\b|Error\b", re.I)
SEVERE = ("error", "critical")
LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "critical", "notice": "info", "warn": "warning"}
LEVELS |= dict.fromkeys(("crit", "alert", "emerg"), "critical")
PREFIXES = (
    # tritonserver's two formats of --log-format
    re.compile(r"(?:[\dT:.-]+Z )?(?P<level>[IWEF])(?:\d{4} [\d:.]+)? \d+ (?P<logger>[\w.-]+:\d+)\] ", re.ASCII),
    re.compile(r"(?:\d{4}/\d\d/\d\d [\d:]+|nginx:) \[(?P<level>\w+)\] (?:\d+#\d+: )?"),  # nginx's error log
    re.compile(r"(?P<level>INFO|WARNING|ERROR): "),
)


@dataclass(frozen=True)
class Entry:
    """A text of a process without what it writes before each: the level, the time, the place in its source."""

    level: str
    message: str
    logger: str = ""


def mixed(process: str, text: str, level: str = "") -> str:
    """JSON as it is, and other lines after the name of the process."""
    return text if is_json(text) else f"{process} | {text}"


def as_json(process: str, text: str, level: str = "") -> str:
    """One JSON object; that of a process as it is."""
    if is_json(text) and read_object(text) is not None:
        return text
    entry = read_entry(text, level)
    moment = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"time": moment, "process": process, "level": entry.level, "message": shortened(entry.message)}
    return json.dumps(line | ({"logger": entry.logger} if entry.logger else {}), separators=(",", ":"))


def as_text(process: str, text: str, level: str = "") -> str:
    """For people: time, process and text; further lines are indented."""
    document = read_object(text) if is_json(text) else None
    if document is None:
        entry = read_entry(text, level)
    elif {"level", "message"} <= document.keys():
        entry = Entry(str(document["level"]), _message_in_words(document))
    else:
        entry = Entry("info", request_in_words(document) if "status" in document else text)
    urgency = "" if entry.level in ("info", "debug") else f"{entry.level.upper()}: "
    first, *rest = (line.translate(ESCAPED) for line in shortened(entry.message).split("\n"))
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return "\n    ".join([f"{now} {process} | {urgency}{first}", *rest])


FORMATS = {"mixed": mixed, "text": as_text, "json": as_json}


def read_entry(text: str, level: str = "") -> Entry:
    """`level` is what is known of it."""
    found = next((match for prefix in PREFIXES if (match := prefix.match(text))), None)
    if found is None:
        return Entry(level or ("error" if ERROR_LINE.search(text) else "info"), text)
    named = found["level"]
    return Entry(LEVELS.get(named, named.lower()), _unquoted(text[found.end() :]), found.groupdict().get("logger", ""))


def _unquoted(message: str) -> str:
    """tritonserver's messages are strings as in JSON, line ends escaped."""
    try:
        value = json.loads(message, strict=False) if message.startswith('"') else message
    except ValueError:
        return message
    return str(value).strip()


def shortened(message: str) -> str:
    """Its beginning and its end, where a traceback has its reason."""
    half = LONGEST_MESSAGE // 2
    return message if len(message) <= LONGEST_MESSAGE else f"{message[:half]} … {message[-half:]}"


def is_json(line: str) -> bool:
    return line.startswith('{"') and line.endswith("}")


def read_object(text: str) -> dict[str, Any] | None:
    """None where it is no JSON object, by the standard: NaN is none."""
    try:
        document = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _no_constant(name: str) -> None:
    raise ValueError(name)


def read_document(line: str) -> dict[str, Any] | None:
    """The object that a line is, None where it is none; it is read only if it has a message or tells of an error."""
    if not is_json(line):
        return None
    return read_object(line) if '"message"' in line or '"level":"error"' in line else {}


def json_message(document: Mapping[str, Any]) -> str:
    """Level and message of a log line of serving/front/logs.py; "" for a request in nginx's log."""
    return f"{document['level']}: {document['message']}" if {"level", "message"} <= document.keys() else ""


def _message_in_words(document: Mapping[str, Any]) -> str:
    request = f" (request {document['request_id']})" if document.get("request_id") else ""
    return "\n".join([f"{document['message']}{request}", *str(document.get("trace", "")).splitlines()])


def request_in_words(document: Mapping[str, Any]) -> str:
    """A request in nginx's log, without its time."""
    words = [str(document[key]) for key in ("method", "path", "status", "code") if document.get(key)]
    version = f"/{document['version']}" if document.get("version") else ""
    words += [f"{document['model']}{version}"] if document.get("model") else []
    stages = [f"{stage} {document[f'{stage}_ms']}" for stage in STAGES if document.get(f"{stage}_ms") is not None]
    took = f" {document['seconds']} s" if "seconds" in document else ""
    detail = f" ({', '.join(stages)} ms)" if stages else ""
    request = f", request {document['request_id']}" if document.get("request_id") else ""
    return f"{' '.join(words)}{took}{detail}{request}".translate(ESCAPED)
