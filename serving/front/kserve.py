"""The routes of KServe's protocol, whose path names a model: /v2/models/MODEL[/versions/VERSION]/…

Requests with a body come here. nginx forwards those without one (health, metadata, statistics) to
Triton.
"""

from collections.abc import Callable
from typing import Any

from flask import Blueprint, Response

from serving.bodies import documents
from serving.bodies.documents import FlatBody, read_binary
from serving.bodies.kserve import HEADER_LENGTH, TensorBody
from serving.bodies.reading import Body
from serving.bodies.schemas import read
from serving.front.incoming import Incoming
from serving.headers import EVENT_STREAM
from serving.request import PATH, Target


def kserve_routes(
    infer: Callable[[Callable[[Incoming], Body], Target, str], Response],
) -> Blueprint:
    """Return a blueprint with the routes. `infer` answers each request (predictor.py)."""
    routes = Blueprint("kserve", __name__)

    def tensors(name: str, version: str | None = None) -> Response:
        """Answer a request that sends tensors, as JSON or as binary data after the JSON.

        Binary data needs the Content-Type application/octet-stream and the header
        Inference-Header-Content-Length, the length of the JSON in bytes.
        """
        return infer(read_tensors, Target(PATH, name, version), "")

    def generate(name: str, version: str | None = None) -> Response:
        """Answer a flat JSON object with exactly one response."""
        return infer(_read_flat, Target(PATH, name, version), "")

    def generate_stream(name: str, version: str | None = None) -> Response:
        """Answer a flat JSON object with any number of responses."""
        return infer(_read_flat, Target(PATH, name, version), EVENT_STREAM)

    for path in ("/v2/models/<name>", "/v2/models/<name>/versions/<version>"):
        routes.add_url_rule(f"{path}/infer", view_func=tensors, methods=["POST"])
        routes.add_url_rule(f"{path}/generate", view_func=generate, methods=["POST"])
        routes.add_url_rule(f"{path}/generate_stream", view_func=generate_stream, methods=["POST"])
    return routes


def read_tensors(source: Incoming) -> TensorBody:
    """Parse the body of …/infer. Raise InvalidRequest."""
    data = source.whole()
    if (length := source.headers.get(HEADER_LENGTH)) is not None:
        return read_binary(length, HEADER_LENGTH, data, is_kserve=True)
    return TensorBody(documents.read_tensors(data), memoryview(b""), len(data), is_kserve=True)


def _read_flat(source: Incoming) -> FlatBody:
    return FlatBody(read(dict[str, Any], source.whole()), generates=True)
