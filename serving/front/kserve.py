"""Defines the routes of KServe v2: health, the index of the models, and calls to a model at
/v2/models/MODEL[/versions/VERSION]/…

nginx forwards requests for metadata, configuration and statistics directly to Triton, and with
SERVE_KSERVE=trusted also requests to …/infer.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from flask import Blueprint, Response

from serving.bodies.documents import FlatBody, read_binary, read_tensors
from serving.bodies.kserve import HEADER_LENGTH, TensorBody
from serving.bodies.reading import Body
from serving.bodies.schemas import JsonObject, RepositoryIndex, read
from serving.front.incoming import Incoming, incoming
from serving.front.models import managed
from serving.front.replies import json_reply
from serving.front.services import services
from serving.headers import EVENT_STREAM
from serving.request import PATH, Target

INDEX = "/v2/repository/index"


def kserve_routes(infer: Callable[[Callable[[Incoming], Body], Target], Response]) -> Blueprint:
    """Return a blueprint with the routes. `infer` answers calls to a model (predictor.py)."""
    routes = Blueprint("kserve", __name__)

    def tensors(name: str, version: str | None = None) -> Response:
        """Answer a request that sends tensors, as JSON or as binary data after the JSON.

        Binary data needs the header Inference-Header-Content-Length, the length of the JSON in
        bytes.
        """
        return infer(_read_tensor_body, Target(PATH, name, version))

    def generate(name: str, version: str | None = None) -> Response:
        """Return exactly one response to a flat JSON object."""
        return infer(_read_flat, Target(PATH, name, version))

    def generate_stream(name: str, version: str | None = None) -> Response:
        """Return a stream of any number of responses to a flat JSON object."""
        return infer(partial(_read_flat, stream=EVENT_STREAM), Target(PATH, name, version))

    routes.add_url_rule("/v2/health/live", view_func=live, methods=["GET"])
    routes.add_url_rule("/v2/health/ready", view_func=ready, methods=["GET"])
    routes.add_url_rule(INDEX, view_func=index, methods=["POST"])
    for path in ("/v2/models/<name>", "/v2/models/<name>/versions/<version>"):
        routes.add_url_rule(f"{path}/ready", view_func=model_ready, methods=["GET"])
        routes.add_url_rule(f"{path}/infer", view_func=tensors, methods=["POST"])
        routes.add_url_rule(f"{path}/generate", view_func=generate, methods=["POST"])
        routes.add_url_rule(f"{path}/generate_stream", view_func=generate_stream, methods=["POST"])
    return routes


def live() -> Response:
    """Return {"live": true} if Triton is live, else 503 with the reason."""
    services().monitoring.check_live()
    return json_reply({"live": True})


def ready() -> Response:
    """Return {"ready": true} if /ping in mode `ready` returns 200, else 503 with the reason."""
    services().monitoring.check_ready()
    return json_reply({"ready": True})


def model_ready(name: str, version: str | None = None) -> Response:
    """Return {"name", "ready": true} if the model is ready, else the reason why it is not."""
    services().monitoring.check_model(name, version)
    return json_reply({"name": name, "ready": True})


@managed
def index() -> Response:
    """List the versions of all models with their states in Triton.

    The body is empty, or {"ready": true} to list only the versions that are ready.
    """
    data = incoming().get_data()
    only_ready = bool(data) and read(RepositoryIndex, data).ready
    listed = []
    for name, versions in sorted(services().registry.index().items()):
        for version in versions:
            if version.state == "READY" or not only_ready:
                # Triton may know the model by another name
                fields = {**asdict(version), "name": name}
                listed.append({key: value for key, value in fields.items() if value})
    return json_reply(listed)


def _read_tensor_body(source: Incoming) -> TensorBody:
    """Parse the body of a request to …/infer. Raise a ServingError or an HTTPException."""
    data = source.whole_body()
    length = source.headers.get(HEADER_LENGTH)
    if length is not None:
        return read_binary(length, HEADER_LENGTH, data, is_kserve=True)
    return TensorBody(read_tensors(data), len(data), is_kserve=True)


def _read_flat(source: Incoming, stream: str = "") -> FlatBody:
    """Parse the body of a request to …/generate or …/generate_stream. Raise a ServingError or an
    HTTPException."""
    return FlatBody(read(JsonObject, source.whole_body()), generates=True, stream=stream)
