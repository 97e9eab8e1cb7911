"""Tests the log: the output of a process becomes JSON lines, or text on a terminal."""

import json
import os
import re
import threading
from typing import IO, Any

import pytest

from serving.pid1.log import LINE_LIMIT, Output, Pump, as_text, read_lines
from serving.pid1.nginx import NGINX_NOISE, QUERY
from serving.pid1.processes import NO_GPU_NOISE, TRITON_NOISE

pytestmark = pytest.mark.unit

GLOG = 'E1122 10:26:32.510791 216 pb_stub.cc:714] "it failed: \\"x\\"\\n\\nAt:\\n  model.py(14)\\n"'
REQUEST = {
    "time": "2026-01-31T12:00:00+00:00",
    "process": "nginx",
    "level": "warning",
    "request_id": "471",
    "method": "POST",
    "path": "/invocations",
    "status": 404,
    "code": "model_not_found",
    "model": "",
    "seconds": 0.031,
}


def pipe_with(data: bytes) -> IO[bytes]:
    """Return the reading end of a pipe into which a process wrote `data` before it ended."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as stream:
            stream.write(data)

    threading.Thread(target=write, daemon=True).start()
    return os.fdopen(reading, "rb")


def read(data: bytes) -> list[str]:
    with pipe_with(data) as stream:
        return [line for lines in read_lines(stream) for line in lines]


def pump(data: bytes, *noise: str, omitted: str = "") -> tuple[str, Pump]:
    """Return the log lines that are written for `data`, and the pump that wrote them."""
    reading, writing = os.pipe()
    reader = Pump("triton", pipe_with(data), Output(writing), noise, omitted)
    reader.start()
    reader.join()
    os.close(writing)
    with os.fdopen(reading, "rb") as written:
        return written.read().decode(), reader


def objects(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in pump(data)[0].splitlines()]


def messages(data: bytes) -> list[str]:
    return [line["message"] for line in objects(data)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (GLOG, ("error", 'it failed: "x"\n\nAt:\n  model.py(14)', "pb_stub.cc:714")),
        ('I1122 10:26:32.510791 216 a.cc:1] "ready"', ("info", "ready", "a.cc:1")),
        ("2026-01-31T12:00:00Z W 216 a.cc:1] not quoted", ("warning", "not quoted", "a.cc:1")),
        (
            "2026/01/31 12:00:00 [crit] 7#7: *1 open() failed",
            ("critical", "*1 open() failed", None),
        ),
        ("nginx: [emerg] no such file", ("critical", "no such file", None)),
        ("WARNING: 'a' is unloaded", ("warning", "'a' is unloaded", None)),
        ("a model prints this", ("info", "a model prints this", None)),
        ('{"cut off": "her', ("info", '{"cut off": "her', None)),
        ('{"two": 1} {"objects": 2}', ("info", '{"two": 1} {"objects": 2}', None)),
    ],
)
def test_turn_a_line_into_an_object_with_level_and_message(
    line: str, expected: tuple[str, str, str | None]
) -> None:
    [entry] = objects(f"{line}\n".encode())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", entry["time"])
    assert entry["process"] == "triton"
    assert (entry["level"], entry["message"], entry.get("logger")) == expected


def test_leave_a_line_of_json_unchanged() -> None:
    line = json.dumps(REQUEST, separators=(",", ":")) + "\n"
    assert pump(line.encode())[0] == line
    assert json.loads(pump('{"path":"/\x9b\x7f"}\n'.encode())[0]) == {"path": "/\x9b\x7f"}
    assert json.loads(pump(b'{"a":\r1}\n')[0]) == {"a": 1}


def test_write_one_entry_per_line_with_or_without_carriage_returns() -> None:
    assert messages(b"one\ntwo\r\nthree") == ["one", "two", "three"]


def test_escape_control_characters() -> None:
    sent = "request: \x1b[31mred\r{\x00\x7f\x9b\u2028serve | ready\tü"
    written = pump(f"{sent}\n".encode())[0]
    assert r"request: \u001b[31mred\r{\u0000\u007f\u009b\u2028serve | ready\t" in written
    assert json.loads(written)["message"] == sent
    path = json.dumps(REQUEST | {"path": "/\x1b[31m\r\nserve | ready"})
    assert r"POST /\u001b[31m\u000d\u000aserve | ready 404 " in as_text("nginx", path)


def test_write_text_to_a_terminal() -> None:
    ours, theirs = os.openpty()
    output = Output(theirs)
    output.write("nginx", json.dumps(REQUEST))
    output.write("tritonserver", GLOG)
    entry = {
        "level": "error",
        "message": "\x1b[31m\nserve | ready",
        "request_id": "471",
        "trace": "KeyError\n  a.py:1",
    }
    output.write("gunicorn", json.dumps(entry))
    output.write("serve", "plain")
    written = b""
    while b"plain\r\n" not in written:
        written += os.read(ours, 1 << 16)
    lines = written.decode().split("\r\n")
    os.close(theirs)
    os.close(ours)
    assert re.fullmatch(
        r"[\d-]{10} [\d:]{8} nginx \| POST /invocations 404 model_not_found 0.031 s, .* 471",
        lines[0],
    )
    assert lines[1].endswith(' tritonserver | ERROR: it failed: "x"')
    assert lines[3:5] == ["    At:", "      model.py(14)"]
    assert lines[5].endswith(r" gunicorn | ERROR: \u001b[31m")
    assert lines[6:9] == ["    serve | ready (request 471)", "    KeyError", "      a.py:1"]
    assert lines[9].endswith(" serve | plain")


@pytest.mark.parametrize(
    ("noise", "line"),
    [
        (TRITON_NOISE, ""),
        (TRITON_NOISE, "+-------+---------+--------+"),
        (TRITON_NOISE, "Memory/Device Management:"),
        (
            TRITON_NOISE,
            "\t--load-model argument will result in error. Note that this option will only",
        ),
        (TRITON_NOISE, 'I1122 10:26:32.510791 216 server.cc:305] "Timeout 5: Found 0 live models"'),
        (
            TRITON_NOISE,
            "[\x1b[1;33mWARN\x1b[0;39m]  \x1b[33mevhtp.c:4050     \x1b[39m\x1b[94mNODELAY "
            "NOT SUPPORTED",
        ),
        (
            NO_GPU_NOISE,
            'W1122 10:26:32.510791 216 x.cc:1] "Unable to allocate pinned system memory, pinned"',
        ),
        (
            NGINX_NOISE,
            "2026/01/31 12:00:00 [crit] 7#7: *1 connect() to unix:/run/g.sock failed (2: No "
            "such file or directory) "
            'while connecting to upstream, client: 127.0.0.1, request: "GET /ping HTTP/1.1"',
        ),
    ],
)
def test_drop_noise(noise: tuple[str, ...], line: str) -> None:
    assert pump(f"{line}\nlast\n".encode(), *noise)[0].count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        GLOG,
        'E1122 10:26:32.510791 216 server.cc:305] "Timeout 5: Found 1 live models"',
        'W1122 10:26:32.510791 216 x.cc:1] "Unable to allocate pinned system memory"',
        "2026/01/31 12:00:00 [error] 7#7: *1 upstream timed out while reading response header, "
        'request: "GET /ping HTTP/1.1"',
        "2026/01/31 12:00:00 [alert] 7#7: worker process 8 exited on signal 9",
    ],
)
def test_never_drop_a_real_error(line: str) -> None:
    """On a machine with a GPU, NO_GPU_NOISE does not apply."""
    assert pump(f"{line}\n".encode(), *TRITON_NOISE, *NGINX_NOISE)[0] != ""


@pytest.mark.parametrize(
    "query", ["?text=secret", '?text="secret', '?a="secret"', '?"secret",', '?a=",secret"&b=?"']
)
def test_keep_query_strings_out_of_nginx_s_error_log(query: str) -> None:
    line = (
        f'2026/01/31 12:00:00 [error] 7#7: *1 it failed, request: "POST /invocations{query} '
        f'HTTP/1.1", upstream: "http://unix:/x:/invocations{query}", host: "x", '
        f'referrer: "http://x/{query}"\n'
    )
    written = pump(line.encode(), omitted=QUERY)[0]
    assert "secret" not in written
    for part in ("POST /invocations", "HTTP/1.1", ":/invocations", 'host: \\"x\\", referrer'):
        assert part in written


def test_cut_a_long_line_and_keep_the_next_one_whole() -> None:
    assert read(b"x" * (3 * LINE_LIMIT + 5) + b"\nnext\n") == ["x" * LINE_LIMIT, "next"]
    assert read(b"x" * LINE_LIMIT + b"\nnext\n") == ["x" * LINE_LIMIT, "next"]


def test_replace_undecodable_bytes() -> None:
    assert messages(b"a\xff\xfeb\n") == ["a��b"]


@pytest.mark.parametrize(
    ("output", "remembered"),
    [
        (b"start\nnginx: [emerg] bind() failed\nbye\n", "nginx: [emerg] bind() failed"),
        (b'E1121 03:10:42 1 server.cc:1] "no"\nI1121 done\n', 'E1121 03:10:42 1 server.cc:1] "no"'),
        (
            b"Traceback\n  File x\nModuleNotFoundError: No module 'y'\n\n",
            "ModuleNotFoundError: No module 'y'",
        ),
        (
            b'nginx: [emerg] no\n{"level":"error","status":500,"code":"internal_error"}\n',
            "nginx: [emerg] no",
        ),
        (b"", ""),
    ],
)
def test_remember_the_last_error_or_otherwise_the_last_line(output: bytes, remembered: str) -> None:
    assert pump(output)[1].last_error() == remembered


def test_keep_pumping_after_the_reader_went_away() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    Output(writing).write("serve", "nobody reads this")
    os.close(writing)


def test_tell_a_slow_reader_how_many_lines_it_missed() -> None:
    reading, writing = os.pipe()
    output = Output(writing)
    line = "x" * 1000
    for _ in range(100):  # a pipe holds 64 kB
        output.write("serve", line)
    got = os.read(reading, 1 << 20)
    output.write("serve", "heard again")
    got += os.read(reading, 1 << 20)
    os.close(writing)
    os.close(reading)
    whole = got.count(f'"{line}"'.encode())
    assert 40 <= whole < 66
    dropped, heard = map(json.loads, got.splitlines()[-2:])
    assert str(100 - whole) in dropped["message"]
    assert heard["message"] == "heard again"
