"""Each format of the log, and which lines are one entry."""

import io
import json
import os
import re
import sys
import threading
from typing import Any

import pytest

from serving.supervisor.entries import Entries
from serving.supervisor.log_lines import LONGEST_MESSAGE, as_text
from serving.supervisor.output import Output, Pump

GLOG = 'E1122 10:26:32.510791 216 pb_stub.cc:714] "it failed: \\"x\\"\\n\\nAt:\\n  model.py(14)\\n"'
REQUEST = {
    "time": "2026-01-31T12:00:00+00:00",
    "process": "nginx",
    "level": "warning",
    "request_id": "4711",
    "method": "POST",
    "path": "/invocations",
    "status": 404,
    "code": "model_not_found",
    "model": "",
    "version": "",
    "seconds": 0.031,
    "decode_ms": 2.114,
    "triton_ms": None,
}
TRACEBACK = """Traceback (most recent call last):
  File "model.py", line 1, in execute
    raise ValueError("x")
ValueError: x

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "model.py", line 3, in execute
RuntimeError: y"""


def logged(data: str, log_format: str = "json", process: str = "tritonserver") -> str:
    """What a process's output becomes."""
    reading, writing = os.pipe()
    source, sink = os.pipe()
    with os.fdopen(sink, "wb") as stream:
        stream.write(data.encode())
    pump = Pump(process, os.fdopen(source, "rb"), Output(writing, log_format), [])
    pump.start()
    pump.join()
    os.close(writing)
    with os.fdopen(reading, "rb") as written:
        return written.read().decode()


def objects(data: str, process: str = "tritonserver") -> list[dict[str, Any]]:
    return [json.loads(line) for line in logged(data, process=process).splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (GLOG, ("error", 'it failed: "x"\n\nAt:\n  model.py(14)', "pb_stub.cc:714")),
        ('I1122 10:26:32.510791 216 a.cc:1] "ready"', ("info", "ready", "a.cc:1")),
        ("2026-01-31T12:00:00Z W 216 a.cc:1] not quoted", ("warning", "not quoted", "a.cc:1")),
        ("2026/01/31 12:00:00 [crit] 7#7: *1 open() failed", ("critical", "*1 open() failed", None)),
        ("nginx: [emerg] no such file", ("critical", "no such file", None)),
        ("WARNING: /dev/shm is small", ("warning", "/dev/shm is small", None)),
        ("ImportError: no module", ("error", "ImportError: no module", None)),
        ("a model prints this", ("info", "a model prints this", None)),
        ('{"cut off": "her', ("info", '{"cut off": "her', None)),
        ('{"not": NaN}', ("info", '{"not": NaN}', None)),
        ('{"two": 1} {"objects": 2}', ("info", '{"two": 1} {"objects": 2}', None)),
    ],
)
def test_as_json_a_line_has_time_process_level_and_message(line: str, expected: tuple[str, str, str | None]) -> None:
    [found] = objects(line + "\n")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", found["time"])
    assert found["process"] == "tritonserver"
    assert (found["level"], found["message"], found.get("logger")) == expected


def test_as_json_what_is_json_stays_as_it_is() -> None:
    line = json.dumps(REQUEST, separators=(",", ":"))
    assert logged(line + "\n") == line + "\n"


def test_a_traceback_is_one_object_and_what_stands_around_it_others() -> None:
    found = objects(f"before\n{TRACEBACK}\nafter\n  below it\n{json.dumps(REQUEST)}\nlast\n")
    assert [each.get("message") for each in found] == ["before", TRACEBACK, "after\n  below it", None, "last"]
    assert found[1]["level"] == "error"


def test_an_entry_ends_when_nothing_comes_for_a_while() -> None:
    reading, writing = os.pipe()
    source, sink = os.pipe()
    Pump("gunicorn", os.fdopen(source, "rb"), Output(writing, "json"), []).start()
    os.write(sink, b"it has no end\n")
    with os.fdopen(reading, "rb") as written:
        assert json.loads(written.readline())["message"] == "it has no end"
        os.close(sink)


def test_an_entry_has_a_largest_size() -> None:
    found = objects("x\n" + " y\n" * 2000)
    assert [each["message"].count("\n") for each in found[:-1]] == [499] * (len(found) - 1)
    [long] = objects("a" * 12_000 + "z\n")
    assert len(long["message"]) <= LONGEST_MESSAGE + 3
    assert long["message"].startswith("aaa") and long["message"].endswith("z")


def test_an_open_entry_is_told() -> None:
    entries = Entries()
    assert (entries.add(["one", "two"]), entries.is_open) == (["one"], True)
    assert (entries.end(), entries.is_open, entries.end()) == (["two"], False, [])


def test_as_text_a_request_is_a_sentence_and_a_trace_is_indented() -> None:
    fine = REQUEST | {"level": "info", "status": 200, "code": "", "model": "resnet", "version": "1"}
    error = {"level": "error", "message": "it failed", "request_id": "4711", "trace": "KeyError\n  a.py:1 in f"}
    lines = logged("\n".join(map(json.dumps, (REQUEST, fine, error))) + f"\n{GLOG}\nplain\n", "text").splitlines()
    times = {line[:19] for line in lines if not line.startswith(" ")}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", each) for each in times)
    assert [line[20:] if line[0] != " " else line for line in lines if line.strip()] == [
        "tritonserver | POST /invocations 404 model_not_found 0.031 s (decode 2.114 ms), request 4711",
        "tritonserver | POST /invocations 200 resnet/1 0.031 s (decode 2.114 ms), request 4711",
        "tritonserver | ERROR: it failed (request 4711)",
        "    KeyError",
        "      a.py:1 in f",
        'tritonserver | ERROR: it failed: "x"',
        "    At:",
        "      model.py(14)",
        "tritonserver | plain",
    ]


def test_as_text_nobody_writes_into_the_terminal_or_begins_a_line() -> None:
    path = json.dumps(REQUEST | {"path": "/\x1b[31m\r\nserve | ready"})
    assert as_text("nginx", path)[20:].startswith(r"nginx | POST /\u001b[31m\u000d\u000aserve | ready 404 ")


def test_a_crash_of_ours_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    reading, writing = os.pipe()
    Output(writing, "json").tell_crashes()
    thread = threading.Thread(target=lambda: io.StringIO().nothing)  # type: ignore[attr-defined]
    thread.start()
    thread.join()
    os.close(writing)
    with os.fdopen(reading, "rb") as written:
        [found] = map(json.loads, written.read().splitlines())
    assert found["level"] == "critical"
    assert found["message"].startswith("Traceback") and "AttributeError" in found["message"]
