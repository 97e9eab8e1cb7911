"""OpenTelemetry's traces: a span per request and stage, with the caller's trace above and Triton's below."""

import json
import logging
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from predictor import create_app
from serving.front.tracing import Seldom
from serving.settings.table import Settings
from serving.settings.tracing import TraceSettings
from tests.support.collector import Collector, Span, collecting
from tests.support.harness import ROOT, Server, make_scale, make_sleeper, wait_until

STAGES = ("decode", "preprocess", "triton", "postprocess")
MARK = "payload-4711-mark"
NOW = {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1"}  # spans are sent one by one, when they end
TENSORS = {"model_name": "scale", "inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [7]}]}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tracing")
    make_scale(folder / "repository")
    make_sleeper(folder / "repository")
    triton = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=0", f"opentelemetry,url={collector.url}/v1/traces")
    running = Server(
        folder,
        folder / "repository",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_EXPORTER_OTLP_HEADERS="authorization=a-key",
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test",
        SAGEMAKER_TRITON_ADDITIONAL_ARGS=" ".join(f"--trace-config={each}" for each in triton),
        **NOW,
    ).wait_ready()
    yield running
    assert running.stop() == 0


def parent(trace: str = "", sampled: bool = True) -> tuple[str, str, str]:
    """A trace's id, a span's id, and the traceparent that says both."""
    trace, span = trace or uuid.uuid4().hex, uuid.uuid4().hex[:16]
    return trace, span, f"00-{trace}-{span}-0{int(sampled)}"


def spans_of(collector: Collector, trace: str) -> dict[str, Span]:
    """Ours, by name, once the request's, which ends last, is there."""

    def ours() -> list[Span]:
        return [span for span in collector.of(trace) if span.resource["service.name"] == "triton-multi-model"]

    wait_until(lambda: [span for span in ours() if span.name.startswith("POST")], f"the spans of {trace}")
    return {span.name: span for span in ours()}


def asked(server: Server, collector: Collector, **request: Any) -> tuple[int, str, dict[str, Span]]:
    """The status, the id of the caller's span, and the spans of the request."""
    trace, span, given = parent()
    reply = server.post(headers={"traceparent": given} | request.pop("headers", {}), **request)
    return reply.status_code, span, spans_of(collector, trace)


def test_a_request_is_a_span_below_the_caller_s_and_its_stages_are_below_it(
    server: Server, collector: Collector
) -> None:
    status, above, spans = asked(server, collector, json={"model_name": "sleeper", "instances": [0.2]})
    assert status == 200
    assert set(spans) == {"POST /invocations", *STAGES}
    request = spans["POST /invocations"]
    assert request.parent == above
    assert {spans[stage].parent for stage in STAGES} == {request.id}
    assert [spans[stage].message.kind for stage in STAGES] == [1, 1, 3, 1], "internal, but for the call to Triton"
    assert request.message.kind == 2, "a server's"
    assert 0.2 <= spans["triton"].attributes["serve.seconds"] <= spans["triton"].seconds + 0.001
    assert spans["triton"].seconds <= request.seconds
    found = request.attributes
    assert (
        found.pop("serve.request_id") and found.pop("http.request.body.size") and found.pop("http.response.body.size")
    )
    assert found == {
        "http.request.method": "POST",
        "http.route": "/invocations",
        "http.response.status_code": 200,
        "serve.model": "sleeper",
        "serve.model_version": "1",
    }
    assert request.resource["deployment.environment"] == "test"
    assert "a-key" in {headers.get("authorization") for headers in collector.headers}


def test_a_small_tensor_is_traced_too_and_triton_s_own_spans_are_below_ours(
    server: Server, collector: Collector
) -> None:
    status, _, spans = asked(server, collector, json=TENSORS)
    assert status == 200
    assert set(spans) == {"POST /invocations", "triton"}
    request = spans["POST /invocations"]
    below = wait_until(
        lambda: [span for span in collector.of(request.trace) if span.parent == spans["triton"].id], "Triton's span"
    )
    assert {span.resource["service.name"] for span in below} == {"triton-inference-server"}


def test_sagemaker_hands_the_trace_on_in_custom_attributes(server: Server, collector: Collector) -> None:
    trace, above, given = parent()
    server.post(json=TENSORS, headers={"X-Amzn-SageMaker-Custom-Attributes": f"traceparent={given}"})
    assert spans_of(collector, trace)["POST /invocations"].parent == above


def test_a_refused_request_has_its_code_and_a_failed_one_is_an_error(server: Server, collector: Collector) -> None:
    refused = asked(server, collector, json={"model_name": MARK, "inputs": []})[2]["POST /invocations"]
    assert refused.attributes["http.response.status_code"] == 404
    assert refused.attributes["error.type"] == "model_not_found"
    assert "serve.model" not in refused.attributes
    assert refused.message.status.code == 0
    failed = asked(server, collector, json={"model_name": "sleeper", "instances": [-1]})[2]
    assert failed["POST /invocations"].message.status.code == 2
    assert failed["POST /invocations"].attributes["error.type"] == "inference_failed"
    assert set(failed) == {"POST /invocations", "decode", "preprocess", "triton"}


def test_a_stream_is_a_span_until_its_last_part(server: Server, collector: Collector) -> None:
    body = {"model_name": "sleeper", "instances": [0.1]}
    status, _, spans = asked(server, collector, json=body, headers={"Accept": "application/jsonlines"})
    assert status == 200
    assert spans["POST /invocations"].seconds >= 0.1
    assert spans["triton"].parent == spans["POST /invocations"].id


def test_what_the_caller_does_not_sample_is_not_sent_and_who_brings_no_trace_begins_one(
    server: Server, collector: Collector
) -> None:
    silent, _, given = parent(sampled=False)
    assert server.post(json=TENSORS, headers={"traceparent": given}).status_code == 200
    before = len(collector.spans)
    assert server.post(json=TENSORS, headers={"traceparent": "00-none-of-this-01"}).status_code == 200
    new = wait_until(
        lambda: [s for s in collector.spans[before:] if s.name == "POST /invocations"], "a trace of its own"
    )
    assert new[0].parent == ""
    assert collector.of(silent) == []
    assert server.get("/ping").status_code == 200
    assert not [span for span in collector.spans if span.name.endswith(("/ping", "/metrics"))]


def test_the_log_has_the_trace_s_id_and_the_caller_gets_none(server: Server, collector: Collector) -> None:
    trace, _, given = parent()
    body = {"model_name": "sleeper", "instances": [0], "parameters": {"mistake": "raise"}}
    reply = server.post(json=body, headers={"traceparent": given})
    assert reply.status_code == 500
    assert "X-Trace-Id" not in reply.headers
    request_id = reply.json()["request_id"]

    def lines() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in server.output().splitlines() if line.startswith("{") and line[-1] == "}"]
        return [line for line in found if line.get("request_id") == request_id]

    wait_until(lambda: len(lines()) == 2, "nginx's line and gunicorn's")
    assert [line["trace_id"] for line in lines()] == [trace, trace]


def test_no_span_has_anything_of_a_body(server: Server, collector: Collector) -> None:
    marked = {"instances": [MARK]}
    for body in (marked | {"model_name": "sleeper"}, marked | {"model_name": MARK}, {MARK: MARK}):
        assert asked(server, collector, json=body)[0] >= 400
    assert not [body for body in collector.bodies if MARK.encode() in body]


def test_nobody_waits_for_a_collector_that_does_not_answer(tmp_path: Path) -> None:
    make_scale(tmp_path / "repository")
    with collecting() as silent:
        silent.answers.clear()
        server = Server(tmp_path, tmp_path / "repository", OTEL_EXPORTER_OTLP_ENDPOINT=silent.url, **NOW).wait_ready()
        for _ in range(50):
            assert server.post(json=TENSORS).status_code == 200
        wait_until(lambda: silent.bodies, "it is asked")
        assert server.stop() == 0
        assert not silent.answers.is_set()
    assert "Exception in thread" not in server.output()


def test_a_worker_that_ends_sends_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/v1/traces")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        app = create_app(Settings.from_env({}), traces=TraceSettings(wanted=True))
        tracing = app.extensions["serving"].tracing
        tracing.begin_worker()
        assert app.test_client().post("/invocations", json={}).status_code == 503
        assert app.test_client().open("/nowhere", method="BREW").status_code == 404
        assert collector.spans == []
        tracing.end_worker()
        assert [(span.name, span.resource["service.name"]) for span in collector.spans] == [
            ("POST /invocations", "mine"),
            ("_OTHER", "mine"),
        ]


def test_a_mistake_in_a_variable_costs_the_traces_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1")
    app = create_app(Settings.from_env({}), traces=TraceSettings(wanted=True))
    app.extensions["serving"].tracing.begin_worker()
    assert "going on without traces" in caplog.text
    assert app.test_client().post("/invocations", json={}).status_code == 503
    app.extensions["serving"].tracing.end_worker()


def test_where_traces_are_off_nothing_of_opentelemetry_is_imported() -> None:
    program = (
        "import sys; from predictor import create_app; from serving.settings.table import Settings; "
        "create_app(Settings.from_env({})); print([name for name in sys.modules if 'opentelemetry' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_line_that_would_come_again_and_again_comes_once() -> None:
    line = logging.LogRecord("x", logging.WARNING, "x.py", 1, "it is away", (), None)
    seldom = Seldom()
    assert [seldom.filter(line) for _ in range(3)] == [True, False, False]
