"""The Flask app: routes, request -> model, error -> JSON. No model's name in it."""

import uuid
from http import HTTPStatus
from typing import Any

from flask import Flask, Request, Response, current_app, g, request
from werkzeug.exceptions import HTTPException

from serving.bodies.encoding import unpacked
from serving.bodies.invocation import (
    ATTRIBUTES,
    RESERVED,
    TARGET_MODEL,
    Body,
    Instances,
    Item,
    Target,
    choose_target,
    read_attributes,
    read_body,
    target_in,
)
from serving.errors import InvalidRequest, ServingError, TritonTimeout, TritonUnavailable
from serving.front.answers import answer
from serving.front.logs import REQUEST_ID
from serving.front.management import is_management
from serving.front.metrics import CONTENT_TYPE, NGINX_WRITING
from serving.front.multimodel_routes import add_routes
from serving.front.observe import observe
from serving.front.replies import json_reply, render_error, render_http_exception, render_unexpected
from serving.front.request_body import read_whole
from serving.front.services import Services, services
from serving.inference import deadline
from serving.inference.registry import Registry
from serving.settings.table import Settings
from serving.settings.triton_access import NO_TRITON, TritonAccess


def create_app(settings: Settings, access: TritonAccess = NO_TRITON) -> Flask:
    """The WSGI application. Opens no connection before its first request."""
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.config["MAX_FORM_MEMORY_SIZE"] = settings.max_body_bytes
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False  # OPTIONS is 405, as of any method that a route has not
    app.extensions["serving"] = Services(settings, access)
    app.before_request(_identify)
    observe(app, app.extensions["serving"].metrics)
    app.before_request(_start_clock)
    app.before_request(_guard_management)
    app.after_request(_add_headers)
    app.register_error_handler(ServingError, render_error)
    app.register_error_handler(HTTPException, render_http_exception)
    app.register_error_handler(Exception, render_unexpected)
    app.add_url_rule("/ping", view_func=ping, methods=["GET", "POST"])
    app.add_url_rule("/metrics", view_func=metrics, methods=["GET"])
    if archives := app.extensions["serving"].multi_model:
        add_routes(app, archives, _read_request, answer)
    else:
        app.add_url_rule("/invocations", view_func=invocations, methods=["POST"])
        app.add_url_rule("/models", view_func=models, methods=["GET"])
        app.add_url_rule("/execution-parameters", view_func=execution_parameters, methods=["GET"])
    return app


def ping() -> Response:
    """200 with an empty body when everything works, else 503 with the stage."""
    health = services().health
    if services().ping_mode == "live":
        health.check_live()
    elif services().multi_model:
        health.check_ready()
    else:
        health.check()
    return Response(status=HTTPStatus.OK, mimetype="text/plain")


def models() -> Response:
    """Every model that Triton knows: versions and states, client, inputs and outputs."""
    registry = services().registry
    return json_reply({"models": [_describe(registry, name) for name in sorted(registry.index())]})


def metrics() -> Response:
    """Ours and Triton's; ours alone when Triton does not answer."""
    try:
        triton: bytes | None = services().gateway.metrics()
    except (TritonUnavailable, TritonTimeout):
        triton = None
    in_nginx = request.headers.get(NGINX_WRITING, type=int)
    return Response(services().metrics.render(triton, in_nginx), content_type=CONTENT_TYPE)


def execution_parameters() -> Response:
    """How SageMaker's batch transform is to call: what the job's own settings leave open."""
    return json_reply(services().execution_parameters)


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
    return answer(served, version or "", body, attributes)


def _read_request() -> tuple[Body, Target]:
    if request.mimetype == "multipart/form-data":
        return _read_form(request)
    encoding, limit = request.headers.get("Content-Encoding", ""), current_app.config["MAX_CONTENT_LENGTH"]
    body = unpacked(read_whole(request), encoding, limit)
    return read_body(request.headers.get("Content-Type", ""), body)


def _read_form(form: Request) -> tuple[Body, Target]:
    """Each file is an instance; fields other than the model's name and version are parameters."""
    files = [Item(field, raw=upload.read()) for field, uploads in form.files.lists() for upload in uploads]
    if not files:
        raise InvalidRequest("the form has no file; send one or more, as curl -F image=@picture.jpg does")
    parameters = {key: value for key, value in form.form.items() if key not in RESERVED}
    return Instances(files, parameters, media_type="multipart/form-data"), target_in("the form", form.form)


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
    REQUEST_ID.set(g.request_id)


def _start_clock() -> None:
    """A request that waited for as long as its caller does is refused before anything is done for it."""
    deadline.begin(request.headers.get(deadline.HANDED_OVER, type=float), services().gateway.timeout)


def _guard_management() -> None:
    """Before every request: /models may be closed."""
    if request.url_rule and is_management(request.url_rule.rule):
        services().management.check(request.headers.get)


def _add_headers(response: Response) -> Response:
    response.headers["X-Request-Id"] = g.get("request_id", "")
    if attributes := request.headers.get(ATTRIBUTES):
        response.headers[ATTRIBUTES] = attributes
    if name := g.get("model_name"):
        response.headers["X-Model-Name"] = name
    if version := g.get("model_version"):
        response.headers["X-Model-Version"] = version
    return response
