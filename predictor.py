"""The Flask app: routes, request -> model, error -> JSON. No model's name in it."""

import logging
import re
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from flask import Flask, Request, Response, current_app, g, request
from werkzeug.exceptions import HTTPException

from clients.base import ModelClient
from serving.codecs import Limits, encode_image
from serving.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    PayloadTooLarge,
    ServingError,
    TritonUnavailable,
    UnsupportedMediaType,
)
from serving.health import Health
from serving.invocation import (
    NPY_TYPE,
    RESERVED,
    Body,
    Instances,
    Item,
    NpyBody,
    Target,
    TensorBody,
    choose_target,
    read_attributes,
    read_body,
    target_in,
)
from serving.pipeline import Pipeline, Predictions
from serving.registry import Registry, ServedModel
from serving.settings import Settings
from serving.tensors import from_triton, read_npy, reply_type, to_triton, write_json, write_npy
from serving.triton import HttpReply, TritonGateway

log = logging.getLogger(__name__)
ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
TARGET_MODEL = "X-Amzn-SageMaker-Target-Model"
UNDECLARED = ("", "application/octet-stream", "application/x-www-form-urlencoded")  # clients' own defaults
PICTURES = ("image/jpeg", "image/png")


class Services:
    """What the routes use, made once per app."""

    def __init__(self, settings: Settings) -> None:
        host = "127.0.0.1"
        self.gateway = TritonGateway(
            f"{host}:{settings.triton_grpc_port}",
            f"{host}:{settings.triton_http_port}",
            settings.grpc_timeout,
        )
        self.registry = Registry(
            self.gateway, [settings.model_repository], settings.default_model, settings.model_clients
        )
        limits = Limits(settings.max_image_pixels)
        self.pipeline = Pipeline(self.gateway, limits, decoders=max(1, settings.inference_threads // settings.workers))
        self.health = Health(self.registry, self.pipeline, settings.status_file)


def services() -> Services:
    """The running app's."""
    found: Services = current_app.extensions["serving"]
    return found


def create_app(settings: Settings) -> Flask:
    """The WSGI application. Opens no connection before its first request."""
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.config["MAX_FORM_MEMORY_SIZE"] = settings.max_body_bytes
    app.extensions["serving"] = Services(settings)
    app.before_request(_identify)
    app.after_request(_add_headers)
    app.register_error_handler(ServingError, _render_error)
    app.register_error_handler(HTTPException, _render_http_exception)
    app.register_error_handler(Exception, _render_unexpected)
    app.add_url_rule("/ping", view_func=ping, methods=["GET", "POST"])
    app.add_url_rule("/invocations", view_func=invocations, methods=["POST"])
    app.add_url_rule("/models", view_func=models, methods=["GET"])
    return app


def ping() -> Response:
    """200 with an empty body when everything works, else 503 with the stage."""
    services().health.check()
    return Response(status=HTTPStatus.OK, mimetype="text/plain")


def models() -> Response:
    """Every model that Triton knows: versions and states, client, inputs and outputs."""
    registry = services().registry
    return _json({"models": [_describe(registry, name) for name in sorted(registry.index())]})


def invocations() -> Response:
    """One request to one model."""
    body, in_body = _read_request()
    attributes = read_attributes(request.headers.get(ATTRIBUTES, ""))
    name, version = choose_target(
        [
            target_in("the header Custom-Attributes", attributes),
            Target("the header Target-Model", request.headers.get(TARGET_MODEL) or None),
            target_in("the query string", request.args),
            in_body,
        ]
    )
    served = services().registry.resolve(name, version)
    g.model_name = served.model.name
    if isinstance(body, TensorBody):
        return _infer_tensors(served, version or "", body)
    if isinstance(body, NpyBody):
        return _infer_npy(served, version or "", body)
    return _predict(served, version or "", body, attributes)


def _read_request() -> tuple[Body, Target]:
    if request.mimetype == "multipart/form-data":
        return _read_form(request)
    return read_body(request.headers.get("Content-Type", ""), request.get_data(cache=False))


def _read_form(form: Request) -> tuple[Body, Target]:
    """Each file is an instance; fields other than the model's name and version are parameters."""
    files = [Item(field, raw=upload.read()) for field, uploads in form.files.lists() for upload in uploads]
    if not files:
        raise InvalidRequest("the form has no file; send one or more, as curl -F image=@picture.jpg does")
    parameters = {key: value for key, value in form.form.items() if key not in RESERVED}
    return Instances(files, parameters, media_type="multipart/form-data"), target_in("the form", form.form)


def _predict(served: ServedModel, version: str, body: Instances, attributes: Mapping[str, str]) -> Response:
    client = served.require_client()
    _check_media_type(client, body.media_type)
    picture = _wanted_picture()
    if picture and len(body.items) != 1:
        raise NotAcceptable(f"Accept: {picture} takes one image at a time, got {len(body.items)} instances")
    given = _parameters(client, attributes) | dict(body.parameters)
    done = services().pipeline.predict(served, version, body.items, given, g.request_id)
    g.model_version = done.version
    if picture:
        drawn = client.draw(done.instances[0], done.predictions[0])
        return Response(encode_image(drawn, picture), mimetype=picture)
    return _json(_reply(served, done, body))


def _reply(served: ServedModel, done: Predictions, body: Instances) -> dict[str, Any]:
    if body.sample_shape:
        return {"modelname": served.model.name, "result": done.predictions[0]}
    return {
        "model_name": served.model.name,
        "model_version": done.version,
        "predictions": done.predictions,
    }


def _check_media_type(client: ModelClient, kind: str) -> None:
    """Raises UnsupportedMediaType for a raw body that says it is something the model does not take."""
    allowed = client.codec.media_types
    if kind in UNDECLARED or kind in allowed or kind.partition("/")[0] + "/*" in allowed:
        return
    raise UnsupportedMediaType(
        f"model '{client.model.name}' takes {', '.join(allowed)} or application/json, not '{kind}'"
    )


def _wanted_picture() -> str | None:
    """image/jpeg or image/png when Accept asks for a picture and not for JSON."""
    accepted = request.accept_mimetypes
    best = accepted.best_match(["application/json", *PICTURES], default="application/json")
    return best if best in PICTURES else None


def _parameters(client: ModelClient, attributes: Mapping[str, str]) -> dict[str, Any]:
    """From Custom-Attributes those that the client knows (others are the caller's own), then the query's."""
    known = {parameter.name for parameter in client.parameters}
    ours = {key: value for key, value in attributes.items() if key in known}
    return ours | {key: value for key, value in request.args.items() if key not in RESERVED}


def _infer_tensors(served: ServedModel, version: str, body: TensorBody) -> Response:
    outgoing = to_triton(body, served.model)
    reply = services().gateway.forward(served.model.name, version, outgoing.body, outgoing.headers())
    reply = from_triton(reply, outgoing.halves)
    g.model_version = _version_in(reply)
    return Response(reply.body, content_type=reply_type(reply))


def _infer_npy(served: ServedModel, version: str, body: NpyBody) -> Response:
    name, array = read_npy(body.body, served.model)
    reply = services().gateway.start(served.model.name, version, {name: array}, g.request_id).result()
    g.model_version = reply.version
    if NPY_TYPE not in request.headers.get("Accept", ""):
        return Response(
            write_json(served.model.name, reply.version, reply.outputs, served.model),
            mimetype="application/json",
        )
    if len(reply.outputs) != 1:
        raise NotAcceptable(f"model '{served.model.name}' has {len(reply.outputs)} outputs; ask for application/json")
    return Response(write_npy(next(iter(reply.outputs.values()))), mimetype=NPY_TYPE)


_VERSION = re.compile(rb'"model_version"\s*:\s*"([^"]*)"')


def _version_in(reply: HttpReply) -> str:
    """Triton writes it at the start of the JSON; parsing a large reply for it would cost more than making it."""
    found = _VERSION.search(reply.body[:2048])
    return found[1].decode() if found else ""


def _describe(registry: Registry, name: str) -> dict[str, Any]:
    versions = [
        {"version": entry.version, "state": entry.state or "UNAVAILABLE", "reason": entry.reason}
        for entry in registry.index()[name].values()
    ]
    described: dict[str, Any] = {"name": name, "versions": versions}
    try:
        return described | registry.get(name).describe()
    except ServingError as err:
        return described | {"error": str(err)}


def _identify() -> None:
    """nginx hands on the caller's Inference-Id or an id that it made."""
    g.request_id = request.headers.get("X-Request-Id") or uuid.uuid4().hex


def _add_headers(response: Response) -> Response:
    response.headers["X-Request-Id"] = g.get("request_id", "")
    if attributes := request.headers.get(ATTRIBUTES):
        response.headers[ATTRIBUTES] = attributes
    if name := g.get("model_name"):
        response.headers["X-Model-Name"] = name
    if version := g.get("model_version"):
        response.headers["X-Model-Version"] = version
    return response


def _json(value: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(orjson.dumps(value), status=status, mimetype="application/json")


def _render_error(error: ServingError) -> Response:
    message = str(error)
    if isinstance(error, TritonUnavailable) and (state := services().health.describe_triton()):
        message = f"{message} [{state}]"
    if error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("request %s: %s", g.get("request_id"), message, exc_info=error)
    response = _json({"error": message, "code": error.code, "request_id": g.get("request_id", "")}, error.status)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def _render_http_exception(error: HTTPException) -> Response:
    code = error.code or HTTPStatus.INTERNAL_SERVER_ERROR
    if code == HTTPStatus.NOT_FOUND:
        return _render_error(
            NotFound(f"there is no {request.path}; there are POST /invocations, GET /ping, GET /models")
        )
    if code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = ", ".join(sorted(set(getattr(error, "valid_methods", None) or []) - {"HEAD", "OPTIONS"}))
        response = _render_error(MethodNotAllowed(f"{request.path} takes {allowed}, not {request.method}"))
        response.headers["Allow"] = allowed
        return response
    if code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        limit = current_app.config["MAX_CONTENT_LENGTH"]
        return _render_error(
            PayloadTooLarge(f"the body is larger than {limit} bytes; SERVE_MAX_BODY_MB sets the limit")
        )
    invalid = InvalidRequest(error.description or error.name)
    invalid.status = code
    return _render_error(invalid)


def _render_unexpected(error: Exception) -> Response:
    log.error("request %s failed", g.get("request_id"), exc_info=error)
    return _render_error(ServingError("an internal error; the log has it under this request_id"))
