"""Defines the route /openapi.json, and the routes that only the web pages use. (nginx serves the
pages themselves, which are in page/: the page for trying the models, and /docs.)

/openapi.json is generated from the code and the routes that the settings turn on, so it does not
depend on the models that are served.
"""

import base64
import inspect
import mimetypes
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from flask import Blueprint, Response, current_app, send_from_directory
from msgspec.json import schema_components
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from clients.base import ModelClient
from serving import VERSION
from serving.bodies.forms import TEXT as TEXT_TYPE
from serving.bodies.hugging_face import Pipeline
from serving.bodies.kserve import BINARY_TYPE
from serving.bodies.lines import LINES_TYPES
from serving.bodies.schemas import (
    DataframeRecords,
    DataframeSplit,
    Flat,
    Inputs,
    Instances,
    JsonObject,
    Load,
    Payload,
    RepositoryIndex,
    Tensors,
)
from serving.clients import client_class, client_names
from serving.errors import CODES, NotFound
from serving.front.kserve import INDEX
from serving.front.models import managed
from serving.front.other_apis import BODIES, PREDICT
from serving.front.replies import OPENAI, json_reply, public_routes, shown_path
from serving.front.services import services
from serving.headers import CSV, EVENT_STREAM, JSON_TYPE, NPY_TYPE, TARGET_MODEL
from serving.request import NAME_KEYS, VERSION_KEY

TEXT: JsonObject = {"type": "string"}
FILE: JsonObject = {"type": "string", "format": "binary", "minLength": 1}
SOME_TEXT: JsonObject = {"type": "string", "minLength": 1}
OBJECT: JsonObject = {"type": "object"}
# the shapes that a JSON object sent to /invocations may have, besides Instances
SHAPES = (Inputs, DataframeRecords, DataframeSplit, Payload, Tensors, Flat)
APIS = {shown_path(rule): body for rule, body in BODIES.items()}
# the bodies of routes that accept only one shape of JSON
JSON_BODIES: dict[str, type] = {**APIS, "/models": Load, INDEX: RepositoryIndex}
OPERATIONS = ("/ping", "/metrics", "/execution-parameters")
OPENAI_FORM = "OpenAI"  # the names of errors in OpenAI's format begin with this
SWAGGER_UI = ("swagger-ui.css", "swagger-ui-bundle.js")

openapi_routes = Blueprint("openapi", __name__)
page_routes = Blueprint("page", __name__)


@openapi_routes.get("/openapi.json")
@managed
def openapi() -> Response:
    """Return a description of this server's API, in OpenAPI 3.1."""
    clients = {name: client_class(name) for name in client_names()}
    codes = _codes_by_status()
    paths: dict[str, JsonObject] = {}
    for path, rule in public_routes():
        text = inspect.getdoc(current_app.view_functions[rule.endpoint]) or ""
        form = OPENAI_FORM if OPENAI.match(path) else ""
        errors = {status: _reference(f"responses/{form}{status}") for status in codes}
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            operation = _operation(path, method, text, clients)
            operation["responses"] |= errors
            paths.setdefault(path, {})[method.lower()] = operation
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Several models on one endpoint",
            "version": VERSION,
            "license": {"name": "Apache-2.0"},
        },
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": _schemas(clients), "responses": _error_responses(codes)},
    }
    return json_reply(document)


def _codes_by_status() -> dict[str, list[str]]:
    """Return the error codes for each HTTP status."""
    codes = defaultdict(list)
    for code, row in sorted(CODES.items()):
        for status in (row.status, *row.also):
            codes[str(status)].append(code)
    return dict(sorted(codes.items()))


def _error_responses(codes: Mapping[str, Sequence[str]]) -> JsonObject:
    """Return the error responses, one for each status, in this project's format and in OpenAI's."""
    responses = {}
    for form in ("", OPENAI_FORM):
        content = _json(_reference(f"schemas/{form}Error"))
        for status, names in codes.items():
            about = f"code: {', '.join(names)}"
            responses[form + status] = {"description": about, "content": content}
    return responses


def _operation(path: str, method: str, text: str, clients: JsonObject) -> JsonObject:
    """Describe one method of a route. `text` is the docstring of its view."""
    summary, _, more = text.partition("\n")
    reply: JsonObject = {"description": "the answer"}
    if path != "/ping" and method != "DELETE":
        reply["content"] = _reply_content(path, method)
    operation: JsonObject = {
        "operationId": "_".join([method.lower(), *re.findall(r"\w+", path)]),
        "tags": [_tag(path)],
        "summary": summary,
        "responses": {"200": reply},
    }
    if more.strip():
        operation["description"] = more.strip()
    if parameters := list(_parameters(path, method)):
        operation["parameters"] = parameters
    if method == "POST" and path != "/ping":
        content = _body_content(path, clients)
        operation["requestBody"] = {"required": path != INDEX, "content": content}
    return operation


def _tag(path: str) -> str:
    if path in APIS or path.startswith("/v1/"):
        return "other_apis"
    if path.startswith("/v2/"):
        return "kserve"
    return "operations" if path in OPERATIONS else "models"


def _parameters(path: str, method: str) -> Iterator[JsonObject]:
    for name in re.findall(r"{(\w+)}", path):
        yield {"name": name, "in": "path", "required": True, "schema": TEXT}
    if path == "/invocations":
        for name in ("model_name", "model_version"):
            about = (
                "for a body that does not name it; the parameters of the model's client are "
                "taken here too"
            )
            yield {"name": name, "in": "query", "description": about, "schema": TEXT}
    if (path, method) == ("/models", "POST"):
        yield {
            "name": TARGET_MODEL,
            "in": "header",
            "description": "what callers name the model by",
            "schema": TEXT,
        }


def _json(schema: JsonObject) -> JsonObject:
    """Return the `content` of a body or reply that is JSON with this schema."""
    return {JSON_TYPE: {"schema": schema}}


def _body_content(path: str, clients: JsonObject) -> JsonObject:
    """Return the `content` of a body that is sent to this path: each media type with its schema."""
    if body := JSON_BODIES.get(path):
        content = _json(_reference(f"schemas/{body.__name__}"))
        if body is Pipeline:
            content["image/*"] = {"schema": FILE}
        return content
    client_schemas = [_reference(f"schemas/{name}") for name in clients]
    if path == shown_path(PREDICT):
        return _json({"anyOf": client_schemas})
    if path.startswith("/v2/"):
        kind = "Tensors" if path.endswith("/infer") else "Flat"
        shape = _reference(f"schemas/{kind}")
        if "{version}" in path:
            shape = {"allOf": [shape, {"not": {"required": [VERSION_KEY]}}]}
        return _json(shape)
    shape_schemas = [_reference(f"schemas/{shape.__name__}") for shape in SHAPES]
    content = _json({"anyOf": [*client_schemas, *shape_schemas]})
    content[JSON_TYPE]["examples"] = _examples(clients)
    return content | _other_content(clients)


def _other_content(clients: JsonObject) -> JsonObject:
    """Return the part of the `content` of a body for /invocations that is not JSON."""
    kinds = {*LINES_TYPES, NPY_TYPE, BINARY_TYPE}
    for client in clients.values():
        kinds.update(client.codec.media_types)
    kinds.discard(JSON_TYPE)
    texts = {CSV, TEXT_TYPE, *LINES_TYPES}
    return {kind: {"schema": SOME_TEXT if kind in texts else FILE} for kind in sorted(kinds)}


def _examples(clients: JsonObject) -> JsonObject:
    """Return a body for each client whose example is the same for all models."""
    examples = {}
    for name, client in clients.items():
        data = getattr(client, "example", None)
        part = client.codec.part
        if isinstance(data, bytes):  # otherwise each model has its own
            instance = {part: base64.b64encode(data).decode()} if part else data.decode()
            examples[name] = {"value": {"model_name": "NAME", "instances": [instance]}}
    return examples


def _reply_content(path: str, method: str) -> JsonObject:
    if path == "/metrics":
        return {CONTENT_TYPE_PLAIN_0_0_4: {"schema": TEXT}}
    if path.startswith("/examples/"):
        return {"*/*": {"schema": {}}}
    if path in APIS or path == INDEX:
        return _json({})  # any JSON, because some of these replies are lists
    stream: JsonObject = {EVENT_STREAM: {"schema": TEXT}}
    if path.endswith("/generate_stream"):
        return stream
    whole = _json(OBJECT)
    is_inference = method == "POST" and path != "/models"
    return (whole | stream) if is_inference else whole


def _schemas(clients: JsonObject) -> dict[str, JsonObject]:
    """Return the schemas of errors, of each shape of a JSON body, and, for each client, of a body
    with `instances`."""
    shapes = (*SHAPES, Instances, *dict.fromkeys(JSON_BODIES.values()))
    _, schemas = schema_components(shapes, ref_template="#/components/schemas/{name}")
    instances_shape = schemas.pop("Instances")
    # A flat object must contain an input. None of the properties that Flat declares is one, so at
    # least one other key is required.
    has_only_declared = {"propertyNames": {"enum": [*schemas["Flat"]["properties"]]}}
    schemas["Flat"]["allOf"] = [{"not": has_only_declared}]
    # a body may name its model under only one of the keys
    for schema in (*schemas.values(), instances_shape):
        if schema.get("properties", {}).keys() >= {*NAME_KEYS}:
            schema["not"] = {"required": [*NAME_KEYS]}
    schemas["Error"] = _object(error=TEXT, code=TEXT, request_id=TEXT)
    error = _object(message=TEXT, type=TEXT, code=TEXT)
    schemas[f"{OPENAI_FORM}Error"] = _object(error=error)
    for name, client in clients.items():
        schemas[name] = _instances_schema(name, client, instances_shape)
    return schemas


def _instances_schema(name: str, client: type[ModelClient], shape: JsonObject) -> JsonObject:
    """Return the schema of a body with `instances` for a client. `shape` is the part of the schema
    that does not depend on the client."""
    # Leave out the defaults, because generated API clients would send all of them, although a model
    # may have other defaults, and a text task accepts only some of the parameters.
    parameters = {
        parameter.name: parameter.schema() | {"description": parameter.help}
        for parameter in client.parameters
    }
    properties = dict(shape["properties"])
    properties["instances"] = properties["instances"] | {
        "description": f"each is {client.codec.expected}",
        "items": client.codec.schema,
    }
    properties["parameters"] = {
        "type": ["object", "null"],
        "description": "GET /models lists those of each model, with their defaults",
        "properties": parameters,
        "additionalProperties": False,
    }
    about = {"title": name, "description": inspect.getdoc(client)}
    return shape | about | {"properties": properties}


def _object(**properties: JsonObject) -> JsonObject:
    """Return the schema of an object in which all of the properties are required."""
    return OBJECT | {"properties": properties, "required": [*properties]}


def _reference(name: str) -> JsonObject:
    return {"$ref": f"#/components/{name}"}


@page_routes.get("/examples/<name>")
def example(name: str) -> Response:
    """Return the model's example: an image, a text, or a JSON value for `instances`."""
    served = services().registry.get(name)
    file = served.example_file()
    filename = file.name if file else "example"
    content = file.read_bytes() if file else served.example()
    kind = mimetypes.guess_type(filename)[0] or "application/octet-stream"
    response = Response(content, mimetype=kind, headers={"X-Content-Type-Options": "nosniff"})
    # make the browser download the file instead of showing it as a page of this server
    response.headers.set("Content-Disposition", "attachment", filename=filename)
    return response


@page_routes.get("/docs/<name>")
def swagger_ui(name: str) -> Response:
    """Return one of Swagger UI's files, which /docs loads."""
    package = find_spec("flask_swagger_ui")
    if name not in SWAGGER_UI or not package or not package.origin:
        raise NotFound(f"there is no /docs/{name}; /docs needs the Python package flask-swagger-ui")
    return send_from_directory(Path(package.origin).parent / "dist", name)
