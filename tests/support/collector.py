"""An OpenTelemetry collector that keeps what it gets."""

import re
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage


@dataclass(frozen=True)
class Span:
    """One that came, its ids as hexadecimal text and its values as Python has them."""

    message: SpanMessage
    resource: dict[str, Any]

    @property
    def name(self) -> str:
        return self.message.name

    @property
    def id(self) -> str:
        return self.message.span_id.hex()

    @property
    def parent(self) -> str:
        return self.message.parent_span_id.hex()

    @property
    def trace(self) -> str:
        return self.message.trace_id.hex()

    @property
    def attributes(self) -> dict[str, Any]:
        return values(self.message.attributes)

    @property
    def seconds(self) -> float:
        return (self.message.end_time_unix_nano - self.message.start_time_unix_nano) / 1e9


def read_export(content_type: str, body: bytes) -> ExportTraceServiceRequest:
    """Triton sends JSON, in which ids are hexadecimal, unlike protobuf's own."""
    export = ExportTraceServiceRequest()
    if "json" in content_type:
        ids = re.compile(rb'("(?:trace|span|parentSpan)Id":) ?"([0-9a-f]*)"')
        text = ids.sub(lambda found: found[1] + b'"' + b64encode(bytes.fromhex(found[2].decode())) + b'"', body)
        json_format.Parse(text, export, ignore_unknown_fields=True)
    else:
        export.MergeFromString(body)
    return export


def values(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


class Collector:
    """`answers` is set; while it is not, whoever sends waits."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.answers = threading.Event()
        self.answers.set()
        self.url = ""

    def take(self, headers: dict[str, str], body: bytes) -> None:
        self.headers.append(headers)
        self.bodies.append(body)
        for group in read_export(headers["content-type"], body).resource_spans:
            resource = values(group.resource.attributes)
            self.spans += [Span(span, resource) for scope in group.scope_spans for span in scope.spans]

    def of(self, trace: str) -> list[Span]:
        return [span for span in self.spans if span.trace == trace]


@contextmanager
def collecting() -> Iterator[Collector]:
    """One on a free port of this machine."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take({name.lower(): value for name, value in self.headers.items()}, body)
            collector.answers.wait()
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield collector
        finally:
            collector.answers.set()
            server.shutdown()
