"""Tests when a request begins, and when a streamed reply ends. tests/endpoint tests the rest over
HTTP."""

import io
import socket
import threading
import time

import pytest
from werkzeug.test import create_environ

from predictor import create_app
from serving.front.hang_ups import HangUps
from serving.front.incoming import FORWARDED, Incoming
from serving.front.streams import SelfClosingResponse
from serving.settings.settings import Settings
from tests.support.harness import PATIENCE

pytestmark = pytest.mark.unit


def test_close_a_stream_once_before_its_end_is_sent() -> None:
    closed: list[str] = []
    response = SelfClosingResponse(iter([b"one", b"two"]))
    response.call_on_close(lambda: closed.append("closed"))
    parts = response.iter_encoded()
    assert (next(parts), next(parts), closed) == (b"one", b"two", [])
    assert (next(parts, None), closed) == (None, ["closed"])
    response.close()
    assert closed == ["closed"]


def test_notify_nobody_about_a_forgotten_connection() -> None:
    hang_ups, called = HangUps(), threading.Event()
    for _ in range(50):
        first, other = socket.socketpair()
        hang_ups.watch(first, called.set)
        hang_ups.forget(first)
        other.close()
        first.close()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hang_ups.watch(ours, called.set)
        theirs.sendall(b"data is not an end")
        assert not called.wait(0.1)
        theirs.close()
        assert called.wait(PATIENCE)
        hang_ups.forget(ours)


@pytest.mark.parametrize(("waited", "counted"), [(3.0, 3.0), (-1000.0, 0.0)])
def test_count_time_in_the_queue_even_if_the_clock_was_set_back(
    waited: float, counted: float
) -> None:
    source = Incoming(create_environ(headers={FORWARDED: str(time.time() - waited)}))
    assert source.forwarded == pytest.approx(time.monotonic() - counted, abs=0.5)


@pytest.mark.parametrize("headers", [{}, {FORWARDED: "noon"}])
def test_start_the_deadline_now_without_nginx(headers: dict[str, str]) -> None:
    assert Incoming(create_environ(headers=headers)).forwarded == pytest.approx(
        time.monotonic(), abs=0.5
    )


def test_log_an_unexpected_error_once(caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(Settings.from_env({}))
    app.add_url_rule("/fails", view_func=lambda: str(1 // 0))
    reply = app.test_client().get("/fails")
    assert (reply.status_code, reply.get_json()["code"]) == (500, "internal_error")
    assert [record.message for record in caplog.records] == ["the request failed"]


@pytest.mark.parametrize("path", ["/openapi.json", "/nowhere"])
def test_drain_a_body_that_no_route_reads(path: str) -> None:
    body = io.BytesIO(b"x" * 1000)
    client = create_app(Settings.from_env({})).test_client()
    client.get(path, environ_overrides={"wsgi.input": body, "CONTENT_LENGTH": "1000"})
    assert body.read() == b""
