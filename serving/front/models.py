"""Defines the routes that list models, test them for the model manager and, if calls load the
models, load and unload them by asking the manager.

In multi-model mode, the platform reacts to a 404 by loading the model, and to a 507 by unloading
other models first. So errors with another cause must not have these statuses. A model's name may
contain slashes, plain or as %2F.
"""

import base64
import hmac
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import wraps
from http import HTTPStatus

from flask import Blueprint, Response, abort
from prometheus_client import Counter

from serving import VERSION
from serving.bodies.examples import try_example
from serving.bodies.schemas import JsonObject, Load, read
from serving.clients import source_of
from serving.errors import (
    Forbidden,
    InvalidRequest,
    LoadFailed,
    ModelFailed,
    ModelNotLoaded,
    ModelNotReady,
    ServingError,
)
from serving.front.incoming import FORWARDED, incoming
from serving.front.manager_calls import ask_manager
from serving.front.replies import json_reply
from serving.front.services import services
from serving.headers import TARGET_MODEL
from serving.model_status.models import Entry, Rejection
from serving.model_status.served_model import ServedModel
from serving.model_status.states import READY
from serving.named_value import whole_number
from serving.settings.settings import ON_DEMAND

PAGE = 100  # models in a page, unless the caller sends ?limit
LARGEST_PAGE = 1000
KNOWN_SECONDS = 5.0  # how long to wait for the manager's list of models that are not loaded
MANAGER_MARGIN = 5.0  # seconds by which callers of the manager wait longer than its time limit

managing_routes = Blueprint("managing", __name__)
naming_routes = Blueprint("naming", __name__)
describing_routes = Blueprint("describing", __name__)
example_routes = Blueprint("examples", __name__)


def managed(view: Callable[..., Response]) -> Callable[..., Response]:
    """Wrap a view so that it takes a slot for the request, and requires the header in
    SERVE_MANAGEMENT_SECRET ("HEADER=VALUE") if that is set. The wrapped view raises Forbidden
    without this header, and any error of Admission.enter."""

    @wraps(view)
    def guarded(**names: str) -> Response:
        source = incoming()
        app = services()
        header, _, value = app.settings.management_secret.partition("=")
        if header:
            sent = source.headers.get(header, "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(sent, value.encode()):
                raise Forbidden(
                    "managing models needs the header and the value that "
                    "SERVE_MANAGEMENT_SECRET names"
                )
        with app.admission.enter(source.content_length or 0):
            return view(**names)

    return guarded


@contextmanager
def _counted(counter: str) -> Iterator[None]:
    """Count the result of the decorated view, "ok" or the code of an error. `counter` is the name
    of the attribute of Metrics that counts."""
    results: Counter = getattr(services().metrics, counter)
    try:
        yield
    except Exception as err:
        code = err.code if isinstance(err, ServingError) else ServingError.code
        results.labels(code).inc()
        raise
    results.labels("ok").inc()


@example_routes.post("/examples/<name>/answer")
def answer_example(name: str) -> Response:
    """Test the model with its example. Reply with the reason of a ModelFailed, or "" if there is no
    error. Any other error gets the usual reply.

    Only the model manager may call this route, so requests through nginx get 404.
    """
    if FORWARDED in incoming().headers:
        abort(HTTPStatus.NOT_FOUND)
    app = services()
    reason = ""
    try:
        with (
            app.admission.enter(0) as slot,
            app.registry.use(slot.keep, nullcontext(), name) as served,
        ):
            try_example(app.gateway, app.decoder, served)
    except ModelFailed as err:
        reason = err.reason
    return json_reply({"reason": reason})


@describing_routes.get("/models")
@managed
def list_models() -> Response:
    """List all models with their versions, states, clients, inputs and outputs.

    `version` is the version of this server. `refused` lists the changes to model folders that are
    not served. With SERVE_MODELS=on-demand, `refused` lists the models that could not be loaded,
    `loading` names the models that are being fetched or loaded or wait for that, and `not_loaded`
    lists those of the repository's first 1,000 models that a call would load, with the sizes of
    their archives or folders if known.
    """
    registry = services().registry
    described = []
    table = registry.table.look()
    is_on_demand = table.policy == ON_DEMAND.name
    for name, versions in sorted(registry.index().items()):
        states = [
            {"version": v.version, "state": v.state or "UNAVAILABLE", "reason": v.reason}
            for v in versions
        ]
        description: JsonObject = {"name": name, "versions": states}
        if is_on_demand and name in table.entries:
            description |= _describe_use(table.entries[name])
        try:
            description |= _describe_model(registry.get(name))
        except ServingError as err:
            description["error"] = str(err)
        described.append(description)
    document: JsonObject = {"models": described, "version": VERSION}
    rejections = [rejection for rejection in table.rejected if rejection.is_current()]
    if rejections:
        document["refused"] = list(map(_describe_rejection, rejections))
    if is_on_demand:
        document["loading"] = table.loading
        with suppress(ModelNotReady):  # leave the list out if the manager does not answer in time
            known = ask_manager(services().settings, "GET", "/known", KNOWN_SECONDS)
            document["not_loaded"] = [
                {"name": name, "bytes": size}
                for name, size in known.items()
                if name not in table.ready
            ]
    return json_reply(document)


def _describe_rejection(rejection: Rejection) -> JsonObject:
    description = {"models": sorted(rejection.folders), "reasons": rejection.reasons}
    if rejection.until == math.inf:
        return description
    return description | {"retried_in": round(rejection.until - time.monotonic(), 1)}


def _describe_use(entry: Entry) -> JsonObject:
    """Return the state of a model that is loaded on demand, how much memory it takes, and how many
    seconds ago its last call ended."""
    idle = time.monotonic() - services().admission.leases.last_use(entry.column)
    size = entry.bytes or entry.estimated
    return {"state": entry.state, "bytes": size, "idle_seconds": round(idle, 1)}


def _describe_model(served: ServedModel) -> JsonObject:
    client = served.client
    model = served.model
    description: JsonObject = {
        "engine": served.engine,
        "client": source_of(client) if client else None,
        "max_batch_size": model.max_batch_size,
        "inputs": [asdict(spec) for spec in model.inputs],
        "outputs": [asdict(spec) for spec in model.outputs],
    }
    optional: JsonObject = {"engine_reason": served.engine_reason, "error": served.client_error}
    if client:
        description |= {"codec": client.codec.name, "instance": client.codec.expected}
        optional |= {"task": client.task, "columns": client.columns}
        schemas = client.parameter_schemas()
        description["parameters"] = [
            {
                "name": parameter.name,
                "default": client.defaults[parameter.name],
                "expected": parameter.expected(),
                "help": parameter.help,
                "schema": schemas[parameter.name],
            }
            for parameter in client.parameters
        ]
    return description | {name: value for name, value in optional.items() if value}


@describing_routes.get("/execution-parameters")
def execution_parameters() -> Response:
    """Tell SageMaker's batch transform how to send requests.

    A job's own settings take precedence.
    """
    return json_reply(services().settings.execution_parameters)


@managing_routes.post("/models")
@_counted("loads")
@managed
def load_model() -> Response:
    """Load the model that the body {"model_name", "url"} describes.

    Answers 200, or an error such as 400, 409 or 507. If the model's client cannot be created, the
    model is unloaded again.
    """
    app = services()
    source = incoming()
    model = read(Load, source.get_data(), hint='; send {"model_name": NAME, "url": FOLDER}')
    # the name by which callers will call the model
    target = source.headers.get(TARGET_MODEL) or model.model_name
    _ask_for_change("POST", name=model.model_name, url=model.url, target=target)
    reason = app.registry.get(target).client_error
    if reason:
        _ask_for_change("DELETE", name=model.model_name)
        raise LoadFailed(f"'{target}' cannot be loaded: {reason}")
    return json_reply({"modelName": model.model_name, "modelUrl": model.url})


@naming_routes.delete("/models/<path:name>")
@_counted("unloads")
@managed
def unload_model(name: str) -> Response:
    """Unload a model. Answers 200 once its memory is free, or 404 if it is not loaded."""
    _ask_for_change("DELETE", name=name)
    return Response(status=200, mimetype="application/json")


@naming_routes.get("/models/<path:name>")
@managed
def get_loaded_model(name: str) -> Response:
    """Return the name and URL of a model. Answers 404 if the model is not loaded."""
    entry = services().registry.table.look().entries.get(name)
    if entry is None or entry.state != READY:
        raise ModelNotLoaded(name)
    return json_reply({"modelName": name, "modelUrl": entry.url})


@managing_routes.get("/models")
@managed
def list_ready_models() -> Response:
    """List the models that are ready, in pages given by ?limit and ?next_page_token."""
    token = incoming().args.get("next_page_token", "")
    limit = incoming().args.get("limit", str(PAGE))
    try:
        after = base64.urlsafe_b64decode(token.encode()).decode()
    except ValueError as err:
        raise InvalidRequest(
            f"next_page_token={token!r} is not a token that a previous page returned"
        ) from err
    most = whole_number(limit)
    if most is None or not 1 <= most <= LARGEST_PAGE:
        raise InvalidRequest(f"limit={limit!r} must be a whole number from 1 to {LARGEST_PAGE}")
    entries = sorted(services().registry.table.look().entries.items())
    ready = [
        {"modelName": name, "modelUrl": e.url}
        for name, e in entries
        if name > after and e.state == READY
    ]
    document: JsonObject = {"models": ready[:most]}
    if len(ready) > most:
        last = ready[most - 1]["modelName"]
        document["nextPageToken"] = base64.urlsafe_b64encode(last.encode()).decode()
    return json_reply(document)


def _ask_for_change(method: str, **fields: str) -> None:
    """Ask the model manager to load or unload a model. Raise the error that it returns, or
    ModelNotReady if it does not answer."""
    settings = services().settings
    ask_manager(settings, method, "/models", settings.load_timeout + MANAGER_MARGIN, **fields)
