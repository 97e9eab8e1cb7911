"""OpenTelemetry's traces: a span for each request and one for each of its stages, sent to a collector by OTLP.

The package reads its standard variables itself (docs/metrics.md). This module is imported only where they ask for
traces: it takes 10 MB. A thread of each worker sends what a bounded queue holds, so no request waits for a collector.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPMethod

from opentelemetry.exporter.http.transport._urllib3 import Urllib3HTTPTransport
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.re import parse_env_headers

from serving import VERSION
from serving.front.incoming import Incoming
from serving.front.metrics import Finished
from serving.settings.tracing import PREFIX
from serving.timings import Timings

NAME = "triton-multi-model"
LAST_SECONDS = 2.0  # in which a worker that ends sends what it has
SECONDS_BETWEEN_WARNINGS = 60.0
# Of those that send: one line for each attempt would be most of the log while the collector is away.
CHATTY = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")
PROPAGATOR = TraceContextTextMapPropagator()

log = logging.getLogger(__name__)


class Tracing:
    """Traces the requests of one worker of gunicorn; `headers` are those that the collector wants, "name=value,…"."""

    def __init__(self, headers: str = "") -> None:
        self._headers = headers
        self._provider: TracerProvider | None = None
        self._tracer: Tracer | None = None

    def begin_worker(self) -> None:
        """After the fork, which no thread survives. A mistake in a variable costs the traces and nothing else."""
        for name in CHATTY:
            logging.getLogger(name).addFilter(Seldom())
        try:
            self._provider = provider(exporter(self._headers))
            self._tracer = self._provider.get_tracer(NAME, VERSION)
        except Exception:
            log.exception("OpenTelemetry cannot be set up; going on without traces")

    def end_worker(self) -> None:
        """Sends what is left, unless that takes long."""
        if self._provider:
            last = threading.Thread(target=self._provider.shutdown, name="last-traces", daemon=True)
            last.start()
            last.join(LAST_SECONDS)

    def begin(self, source: Incoming) -> None:
        """The request's span; its stages are those that it spends time in from now on. Its parent stands in the header
        traceparent, or in Custom-Attributes, which is all that SageMaker hands on."""
        if self._tracer is None:
            return
        given = {name: source.headers.get(name) or source.attributes.get(name, "") for name in PROPAGATOR.fields}
        span = self._tracer.start_span(name_of(source), PROPAGATOR.extract(given), SpanKind.SERVER)
        source.trace_id = format_trace_id(span.get_span_context().trace_id)
        source.timings = SpanTimings(self._tracer, span)

    def end(self, source: Incoming, facts: Finished, code: str) -> None:
        """`code` is the error's, "" where there is none."""
        if isinstance(source.timings, SpanTimings):
            source.timings.end(attributes_of(source, facts, code), facts.status)


class SpanTimings(Timings):
    """Timings of which each stage is also a span, from its first beginning to its last end: the stages of a request in
    several batches overlap, and `serve.seconds` is the time that was spent in one."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        super().__init__()
        self._tracer, self._span = tracer, span
        self._stages: dict[str, Span] = {}
        self._ends: dict[str, int] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._begin(name)
        try:
            with super().stage(name):
                yield
        finally:
            self._ends[name] = time.time_ns()

    def trace_headers(self) -> Mapping[str, str]:
        """None of a trace that is not sampled: Triton traces all that it is told of one (24.10)."""
        carrier: dict[str, str] = {}
        if self._span.get_span_context().trace_flags.sampled:
            PROPAGATOR.inject(carrier, set_span_in_context(self._begin("triton")))
        return carrier

    def end(self, attributes: Mapping[str, str | int], status: int) -> None:
        """Of the request and so of all stages."""
        for name, stage in self._stages.items():
            stage.set_attribute("serve.seconds", self.get(name, 0.0))
            stage.end(self._ends.get(name))
        self._span.set_attributes(attributes)
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()

    def _begin(self, name: str) -> Span:
        if name not in self._stages:
            kind = SpanKind.CLIENT if name == "triton" else SpanKind.INTERNAL
            self._stages[name] = self._tracer.start_span(name, set_span_in_context(self._span), kind)
        return self._stages[name]


class Seldom(logging.Filter):
    """Lets a line pass and then none for a while."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + SECONDS_BETWEEN_WARNINGS
        return True


def exporter(headers: str) -> OTLPSpanExporter:
    """With urllib3, which is there anyway: requests, the default, would take 2 MB of the image. Raises ValueError and
    others where variables are wrong."""
    certificate, own_certificate = _variable("CERTIFICATE"), _variable("CLIENT_CERTIFICATE")
    own = (own_certificate, own_key) if (own_key := _variable("CLIENT_KEY")) else own_certificate or None
    return OTLPSpanExporter(
        headers=parse_env_headers(headers, liberal=True),
        _transport=Urllib3HTTPTransport(verify=certificate or True, cert=own),
    )


def provider(sends: OTLPSpanExporter) -> TracerProvider:
    """Sampled and named as the variables say."""
    resource = Resource.create({"service.version": VERSION})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: NAME}))
    made = TracerProvider(resource=resource, shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(sends))
    return made


def name_of(source: Incoming) -> str:
    """As OpenTelemetry names a server's spans: by method and route, which callers cannot make up."""
    route = f" {source.url_rule.rule}" if source.url_rule else ""
    return f"{_method(source)}{route}"


def attributes_of(source: Incoming, facts: Finished, code: str) -> dict[str, str | int]:
    """Nothing of a body."""
    known: dict[str, str | int | None] = {
        "http.request.method": _method(source),
        "http.route": source.url_rule.rule if source.url_rule else None,
        "http.response.status_code": facts.status,
        "http.request.body.size": facts.received,
        "http.response.body.size": facts.sent,
        "serve.request_id": source.id,
        "serve.model": facts.model or None,
        "serve.model_version": facts.version or None,
        "error.type": code or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _method(source: Incoming) -> str:
    with contextlib.suppress(ValueError):
        return HTTPMethod(source.method).value
    return "_OTHER"


def _variable(name: str) -> str:
    return os.environ.get(f"{PREFIX}TRACES_{name}") or os.environ.get(f"{PREFIX}{name}", "")
