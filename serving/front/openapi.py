"""GET /openapi.json, and the routes that only the page to try the models (page/, which nginx serves) calls.

The document has the routes, the errors, and each client's parameters and example, as OpenAPI 3.1. It is made from the
code alone and calls nothing, so it is the same whatever is served; GET /models has the models. What writes it is
imported at the first call, because that takes time.
"""

import base64
import inspect
import mimetypes
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, current_app, send_from_directory

from serving import VERSION
from serving.errors import TABLE, NotFound
from serving.front.incoming import services
from serving.front.metrics import CONTENT_TYPE as PROMETHEUS
from serving.front.models import managed
from serving.front.replies import json_reply
from serving.headers import JSON_TYPE, TARGET_MODEL

Json = dict[str, Any]
UNSAID = {"HEAD", "OPTIONS"}
PAGES = "/docs/"  # the page's files are not part of the API
FOR_THE_MANAGER = "examples.answer_example"
TEXT: Json = {"type": "string"}
FILE: Json = {"type": "string", "format": "binary"}
OBJECT: Json = {"type": "object"}
TENSORS = "Tensors"


openapi_routes = Blueprint("openapi", __name__)
page_routes = Blueprint("page", __name__)


@openapi_routes.get("/openapi.json")
@managed
def openapi() -> Response:
    """Return the API of this server as OpenAPI 3.1."""
    paths: dict[str, Json] = {}
    for rule in current_app.url_map.iter_rules():
        if rule.rule.startswith(PAGES) or rule.endpoint == FOR_THE_MANAGER:
            continue
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        text = inspect.getdoc(current_app.view_functions[rule.endpoint]) or ""
        for method in sorted((rule.methods or set()) - UNSAID):
            paths.setdefault(path, {})[method.lower()] = _operation(path, method, text)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Several models on one endpoint", "version": VERSION, "license": {"name": "Apache-2.0"}},
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": _schemas(), "responses": _errors()},
    }
    return json_reply(document)


def _operation(path: str, method: str, text: str) -> Json:
    summary, _, more = text.partition("\n")
    reply: Json = {"description": "the answer"}
    if path != "/ping" and method != "DELETE":
        reply["content"] = _reply(path, method)
    operation: Json = {
        "operationId": "_".join([method.lower(), *re.findall(r"\w+", path)]),
        "tags": [_tag(path)],
        "summary": summary,
        "responses": {"200": reply} | {status: {"$ref": f"#/components/responses/{status}"} for status in _codes()},
    }
    if more.strip():
        operation["description"] = more.strip()
    if parameters := list(_parameters(path, method)):
        operation["parameters"] = parameters
    if method == "POST" and path != "/ping":
        operation["requestBody"] = {"required": True, "content": _body(path)}
    return operation


def _tag(path: str) -> str:
    if path.startswith("/v2/"):
        return "kserve"
    return "operations" if path in ("/ping", "/metrics", "/execution-parameters") else "models"


def _parameters(path: str, method: str) -> Iterator[Json]:
    for name in re.findall(r"{(\w+)}", path):
        yield {"name": name, "in": "path", "required": True, "schema": TEXT}
    if path == "/invocations":
        for name in ("model_name", "model_version"):
            about = "for a body that does not name it; the parameters of the model's client are taken here too"
            yield {"name": name, "in": "query", "description": about, "schema": TEXT}
    if (path, method) == ("/models", "POST"):
        yield {"name": TARGET_MODEL, "in": "header", "description": "what callers name the model by", "schema": TEXT}


def _body(path: str) -> Json:
    from serving.bodies.kserve import BINARY_TYPE

    if path == "/models":
        load = {"properties": {"model_name": TEXT, "url": TEXT}, "required": ["model_name", "url"]}
        return {JSON_TYPE: {"schema": OBJECT | load}}
    if path.startswith("/v2/"):
        infer = path.endswith("/infer")
        tensors = {JSON_TYPE: {"schema": _reference(TENSORS) if infer else OBJECT}}
        return tensors | ({"application/octet-stream": {"schema": FILE}} if infer else {})
    from serving.bodies.lines import LINES_TYPES
    from serving.bodies.npy import NPY_TYPE

    raw = {kind for client in _clients().values() for kind in client.codec.media_types} - {JSON_TYPE}
    examples = {name: {"value": body} for name, client in _clients().items() if (body := _example(client))}
    schema = {"anyOf": [*map(_reference, _clients()), _reference(TENSORS)]}
    files = {kind: {"schema": FILE} for kind in sorted({*raw, *LINES_TYPES, NPY_TYPE, BINARY_TYPE})}
    return {JSON_TYPE: {"schema": schema, "examples": examples}} | files


def _reply(path: str, method: str) -> Json:
    if path == "/metrics":
        return {PROMETHEUS: {"schema": TEXT}}
    if path.startswith("/examples/") or path == "/docs":
        return {"*/*": {"schema": {}}}
    content: Json = {JSON_TYPE: {"schema": OBJECT}}
    if method == "POST" and path != "/models":
        content["text/event-stream"] = {"schema": TEXT}
    return content


@cache
def _clients() -> dict[str, Any]:
    """Return the class of each client by its name."""
    from serving.clients import families, family

    return {name: family(name) for name in families()}


def _schemas() -> dict[str, Json]:
    error = dict.fromkeys(("error", "code", "request_id"), TEXT)
    tensor = {"name": TEXT, "datatype": TEXT, "shape": {"type": "array", "items": {"type": "integer"}}, "data": {}}
    inputs = {"type": "array", "items": OBJECT | {"properties": tensor, "required": ["name", "datatype", "shape"]}}
    return {
        "Error": OBJECT | {"properties": error, "required": [*error]},
        TENSORS: OBJECT | {"properties": {"model_name": TEXT, "inputs": inputs}, "required": ["inputs"]},
        **{name: _request(client) for name, client in _clients().items()},
    }


def _request(client: Any) -> Json:
    """Return the schema of a JSON body for a model of this client."""
    parameters = {
        parameter.name: parameter.schema() | {"description": parameter.help, "default": parameter.default}
        for parameter in client.parameters
    }
    instances = {"type": "array", "minItems": 1, "description": f"each is {client.codec.expected}"}
    fields = {
        "model_name": TEXT,
        "model_version": {"type": ["string", "integer", "null"]},
        "instances": instances,
        "parameters": {"type": ["object", "null"], "properties": parameters, "additionalProperties": False},
    }
    return OBJECT | {"description": inspect.getdoc(client), "properties": fields, "required": ["instances"]}


def _example(client: Any) -> Json | None:
    """Return a body with the client's own example; None if an example depends on the model."""
    data = getattr(client, "example", None)
    if not isinstance(data, bytes):
        return None
    part = client.codec.part
    instance = {part: base64.b64encode(data).decode()} if part else data.decode()
    return {"model_name": "NAME", "instances": [instance]}


def _reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


@cache
def _codes() -> dict[str, str]:
    """Return the error codes of each status, separated by commas."""
    codes = defaultdict(list)
    for code, row in sorted(TABLE.items()):
        for status in (row.status, *row.also):
            codes[str(status)].append(code)
    return {status: ", ".join(listed) for status, listed in sorted(codes.items())}


def _errors() -> Json:
    content = {JSON_TYPE: {"schema": _reference("Error")}}
    return {status: {"description": f"code: {codes}", "content": content} for status, codes in _codes().items()}


SWAGGER_UI = ("swagger-ui.css", "swagger-ui-bundle.js")


@page_routes.get("/examples/<name>")
def example(name: str) -> Response:
    """Return the model's example as it would be posted."""
    served = services().registry.get(name)
    file = served.example_file()
    content, called = (file.read_bytes(), file.name) if file else (served.example(), "example")
    kind = mimetypes.guess_type(called)[0] or "application/octet-stream"
    response = Response(content, mimetype=kind, headers={"X-Content-Type-Options": "nosniff"})
    response.headers.set("Content-Disposition", "attachment", filename=called)  # no page of ours, whatever it holds
    return response


@page_routes.get("/docs/<name>")
def swagger_ui(name: str) -> Response:
    """Return a file of Swagger UI, of which /docs is made."""
    package = find_spec("flask_swagger_ui")
    if name not in SWAGGER_UI or not package or not package.origin:
        raise NotFound(f"there is no /docs/{name}; /docs needs the Python package flask-swagger-ui")
    return send_from_directory(Path(package.origin).parent / "dist", name)
