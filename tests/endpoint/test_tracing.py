"""Tests that the caller's traceparent is passed on to Triton, which sends the traces. Triton 24.10
loses the spans of some calls over gRPC, even if this server is not involved, and does not resend a
batch. Therefore the tests repeat a call until its spans arrive."""

import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.harness import Server, make_scale, tensor, wait_until

pytestmark = pytest.mark.stack

TENSORS = {"model_name": "scale", "inputs": [tensor([7])]}


class Collector(ThreadingHTTPServer):
    """Collects the spans that tritonserver sends as OTLP in JSON."""

    daemon_threads = True

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    def of(self, trace: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["traceId"] == trace]


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        export = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for group in export["resourceSpans"]:
            self.server.spans += [span for scope in group["scopeSpans"] for span in scope["spans"]]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture(scope="module")
def server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tracing")
    make_scale(folder / "repository")
    url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    options = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=0", f"opentelemetry,url={url}")
    arguments = " ".join(f"--trace-config={option}" for option in options)
    running = Server(
        folder, folder / "repository", SAGEMAKER_TRITON_ADDITIONAL_ARGS=arguments
    ).wait_ready()
    yield running
    assert running.stop() == 0


@pytest.mark.parametrize("is_attribute", [False, True])
def test_put_triton_s_spans_into_the_caller_s_trace(
    server: Server, collector: Collector, is_attribute: bool
) -> None:
    trace, parent = uuid.uuid4().hex, uuid.uuid4().hex[:16]
    value = f"00-{trace}-{parent}-01"
    header = (
        {"X-Amzn-SageMaker-Custom-Attributes": f"traceparent={value}"}
        if is_attribute
        else {"traceparent": value}
    )

    def spans() -> list[dict[str, Any]]:
        assert server.post(json=TENSORS, headers=header).status_code == 200
        return collector.of(trace)

    spans_of_trace = wait_until(spans, "Triton's spans", pause=0.5)
    assert parent in {span["parentSpanId"] for span in spans_of_trace}


def test_forward_only_a_valid_and_sampled_traceparent(server: Server, collector: Collector) -> None:
    silent, last = uuid.uuid4().hex, uuid.uuid4().hex
    unsampled = f"00-{silent}-{'1' * 16}-00"
    malformed = (f"00-{silent}-{'1' * 15}-01", f"00-{silent}\xe9-01", "00-none-of-this")

    def spans() -> list[dict[str, Any]]:
        for traceparent in (unsampled, *malformed, f"00-{last}-{'2' * 16}-01"):
            reply = server.post(
                json=TENSORS, headers={"traceparent": traceparent.encode("latin-1")}
            )
            assert reply.status_code == 200
        return collector.of(last)

    wait_until(spans, "Triton's spans", pause=0.5)
    assert {
        span["traceId"] for span in collector.spans if span["parentSpanId"] == "1" * 16
    } == set()
    assert collector.of(silent) == []
