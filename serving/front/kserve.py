"""KServe's own routes, /v2/models/MODEL[/versions/VERSION]/…: what of them has a body comes here.

nginx hands those without one (health, metadata, statistics) to Triton.
"""

from collections.abc import Callable

from flask import Flask, Response

from serving.bodies.flat import FlatBody
from serving.bodies.kserve import HEADER_LENGTH, TensorBody
from serving.bodies.reading import parse_object, read_binary
from serving.errors import InvalidRequest
from serving.front.incoming import Incoming, incoming
from serving.front.replies import EVENTS, Format
from serving.request import PATH, Body, Target

Answer = Callable[[Body, Target, Format | None], Response]
MODEL = "/v2/models/<name>"
VERSION = "/v2/models/<name>/versions/<version>"


class KServeRoutes:
    """`answer` answers a body for the target that the path names, as a stream where a format is given."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def add_to(self, app: Flask) -> None:
        for path in (MODEL, VERSION):
            app.add_url_rule(f"{path}/infer", view_func=self.infer, methods=["POST"])
            app.add_url_rule(f"{path}/generate", view_func=self.generate, methods=["POST"])
            app.add_url_rule(f"{path}/generate_stream", view_func=self.generate_stream, methods=["POST"])

    def infer(self, name: str, version: str | None = None) -> Response:
        """Tensors, as JSON or with binary data behind it."""
        return self._answer(read_tensors(incoming()), Target(PATH, name, version), None)

    def generate(self, name: str, version: str | None = None) -> Response:
        """A flat object, answered by exactly one response."""
        return self._answer(_read_flat(incoming()), Target(PATH, name, version), None)

    def generate_stream(self, name: str, version: str | None = None) -> Response:
        """The same, answered by any number of responses."""
        return self._answer(_read_flat(incoming()), Target(PATH, name, version), EVENTS)


def read_tensors(source: Incoming) -> TensorBody:
    """Raises InvalidRequest."""
    data = source.whole()
    length = source.headers.get(HEADER_LENGTH)
    if length is not None:
        return read_binary(length, HEADER_LENGTH, data, is_kserve=True)
    return TensorBody(parse_object(data, "the body"), memoryview(b""), len(data), is_kserve=True)


def _read_flat(source: Incoming) -> FlatBody:
    document = parse_object(source.whole(), "the body")
    if not document:
        raise InvalidRequest("the body is an empty object: it names no input")
    return FlatBody(document, generates=True)
