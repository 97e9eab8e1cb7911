"""The Flask app: routes, request -> model, error -> JSON. No model's name in it.

Incoming --read_request--> Request --registry--> ServedModel --Inference--> Reply --> Response
"""

import hmac
from collections.abc import Iterable
from functools import partial
from http import HTTPStatus
from time import monotonic, perf_counter
from typing import Any

from flask import Flask, Response, abort
from werkzeug.exceptions import HTTPException

from serving import VERSION
from serving.bodies.examples import try_example
from serving.bodies.reading import Body
from serving.budget import HANDED_OVER, MOST_PARTS
from serving.errors import Forbidden, ServingError
from serving.front.incoming import Incoming, incoming, read_invocation, read_request, target_model
from serving.front.models import KServeRoutes, ModelRoutes
from serving.front.openapi import add_page, openapi
from serving.front.replies import json_reply, render_error, render_http_exception, render_unexpected
from serving.front.scrape import metrics
from serving.front.services import Services, services
from serving.front.streams import stream_reply
from serving.headers import ATTRIBUTES
from serving.models.registry import Registry
from serving.request import PATH, Target
from serving.sessions import session_headers
from serving.settings.table import Settings
from serving.triton.connection import IndexEntry

UNCOUNTED = ("ping", "metrics", "answer_example")  # endpoints that no caller of a model uses


class App(Flask):
    """Flask with our kind of request."""

    request_class = Incoming


def create_app(settings: Settings, shared_memory: str = "") -> Flask:
    """The WSGI application; its files in /dev/shm have names that begin with `shared_memory`. Opens no connection
    before its first request."""
    app = App(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.config["MAX_FORM_MEMORY_SIZE"] = settings.max_body_bytes
    app.config["MAX_FORM_PARTS"] = MOST_PARTS
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False  # OPTIONS is 405, as of any method that a route has not
    app.extensions["serving"] = made = Services(settings, shared_memory)
    app.before_request(_admit)
    app.after_request(_finish)
    app.before_request(_refuse_late)
    if settings.management_secret:
        app.before_request(partial(_guard_management, settings.management_secret))
    app.after_request(_add_headers)
    app.register_error_handler(ServingError, render_error)
    app.register_error_handler(HTTPException, render_http_exception)
    app.register_error_handler(Exception, render_unexpected)
    app.add_url_rule("/ping", view_func=ping, methods=["GET", "POST"])
    app.add_url_rule("/metrics", view_func=metrics, methods=["GET"])
    app.add_url_rule("/openapi.json", view_func=openapi, methods=["GET"])
    app.add_url_rule("/invocations", view_func=invocations, methods=["POST"])
    app.add_url_rule("/examples/<name>/answer", view_func=answer_example, methods=["POST"])
    if settings.page == "true":
        add_page(app)
    if settings.kserve != "false":
        KServeRoutes(answer).add_to(app)
    if settings.multi_model:
        ModelRoutes(made.registry, settings).add_to(app)
        app.add_url_rule("/models/<path:name>/invoke", view_func=invoke, methods=["POST"])
    else:
        app.add_url_rule("/models", view_func=models, methods=["GET"])
        app.add_url_rule("/execution-parameters", view_func=execution_parameters, methods=["GET"])
    return app


def ping() -> Response:
    """200 with an empty body when everything works, else 503 with the stage."""
    health = services().health
    if services().settings.ping_mode == "live":
        health.check_live()
    else:
        health.check()
    return Response(status=HTTPStatus.OK, mimetype="text/plain")


def models() -> Response:
    """Every model that Triton knows: versions and states, client, inputs and outputs; and our own version.
    `refused` has changes of model folders that are not served."""
    registry = services().registry
    described = [_describe(registry, name, versions) for name, versions in sorted(registry.index().items())]
    refused = [{"models": sorted(each.folders), "reasons": each.reasons} for each in registry.models().rejected]
    return json_reply({"models": described, "version": VERSION} | ({"refused": refused} if refused else {}))


def execution_parameters() -> Response:
    """How SageMaker's batch transform is to call: what the job's own settings leave open."""
    return json_reply(services().settings.execution_parameters)


def invocations() -> Response:
    """One request to the model that it names.

    The model's parameters stand in the body's `parameters`, or in the query string, as `?top_k=3`; the body's win."""
    return answer(_read_body(), target_model(incoming()))


def invoke(name: str) -> Response:
    """One request to the model that the path names."""
    return answer(_read_body(), Target(PATH, name))


def answer_example(name: str) -> Response:
    """200 if the model answers its example. It is for the model manager alone, so nginx's requests get 404."""
    if HANDED_OVER in incoming().headers:
        abort(HTTPStatus.NOT_FOUND)
    app = services()
    with app.admission.enter(0) as slot, app.registry.use(slot, name) as served:
        try_example(app.gateway, app.decoder, served)
    return Response(status=HTTPStatus.OK, mimetype="text/plain")


def answer(body: Body, named: Target, stream: str = "") -> Response:
    """Answer a body for the model that `named` and the rest of the request agree on. `stream` is the type of the stream
    that the route asks for."""
    source, app = incoming(), services()
    request = read_request(source, app, stream, body.named, named)
    with app.registry.use(source.slot, request.target.name, request.target.version) as served:
        source.model = served.name
        job = body.bind(served, request)
        if job.request.stream:
            report = partial(app.registry.report, served, began=monotonic())
            connection = source.environ.get("gunicorn.socket")
            response, source.version = stream_reply(job, app.gateway, app.hang_ups, connection, report)
            return response
        reply = job.answer(app.gateway)
        source.version = reply.version
        headers = {**reply.headers, **session_headers(job.session)}
        return Response(reply.content, content_type=reply.content_type, headers=headers)


def _read_body() -> Body:
    return read_invocation(incoming(), services().settings.inference_type)


def _describe(registry: Registry, name: str, entries: Iterable[IndexEntry]) -> dict[str, Any]:
    versions = [
        {"version": entry.version, "state": entry.state or "UNAVAILABLE", "reason": entry.reason} for entry in entries
    ]
    described: dict[str, Any] = {"name": name, "versions": versions}
    try:
        return described | registry.get(name).describe()
    except ServingError as err:
        return described | {"error": str(err)}


def _admit() -> None:
    """Take a slot for the request of a caller. Raise Overloaded."""
    source = incoming()
    if source.endpoint not in UNCOUNTED:
        source.started = perf_counter()
        source.slot = services().admission.enter(source.content_length or 0)


def _finish(response: Response) -> Response:
    """Leave the slot and count the request when its reply ends: a stream's after its last part."""
    source, app = incoming(), services()
    source.drain()
    if source.started is None:
        return response
    if header := source.timings.header():  # nginx logs it
        response.headers["Server-Timing"] = header
    started, received = source.started, source.content_length or 0
    sent = None if response.is_streamed else response.calculate_content_length()

    def finish() -> None:
        if slot := getattr(source, "slot", None):  # it was admitted
            slot.leave()
        seconds = perf_counter() - started
        app.metrics.count(source.model, source.version, response.status_code, seconds, received, sent, source.timings)

    if response.is_streamed:
        response.call_on_close(finish)
    else:
        finish()
    return response


def _refuse_late() -> None:
    """What waited for as long as its caller does is refused before anything is done for it. nginx says when it handed
    a request over, of the routes that infer."""
    incoming().deadline(services().gateway.timeout).left()


def _guard_management(secret: str) -> None:
    """Refuse callers of the management routes that do not send the header and the value of `secret`, "HEADER=VALUE"."""
    source = incoming()
    header, _, value = secret.partition("=")
    sent = source.headers.get(header, "").encode("utf-8", "surrogateescape")
    if source.url_rule and is_management(source.url_rule.rule) and not hmac.compare_digest(sent, value.encode()):
        raise Forbidden("managing models needs the header and the value that SERVE_MANAGEMENT_SECRET names")


def is_management(rule: str) -> bool:
    """Return whether a route loads, unloads or lists models: /models and all below it but an inference, and
    /openapi.json."""
    return rule in ("/models", "/openapi.json") or (rule.startswith("/models/") and not rule.endswith("/invoke"))


def _add_headers(response: Response) -> Response:
    source = incoming()
    own = {
        "X-Request-Id": source.id,
        ATTRIBUTES: source.headers.get(ATTRIBUTES, ""),
        "X-Model-Name": source.model,
        "X-Model-Version": source.version,
    }
    response.headers.update({name: value for name, value in own.items() if value})
    return response
