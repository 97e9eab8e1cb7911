"""/openapi.json: the routes of the app, and for each model that is served now its bodies and replies, as OpenAPI 3.1.

The routes and their descriptions are the app's own; the schemas are made of what checks a request: the models' tensors,
their clients' codecs and parameters, and the tree of errors.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from serving import VERSION
from serving.front.api_schemas import ERROR, Schemas, described
from serving.served_model import ServedModel

Json = dict[str, Any]
OPENAPI = "3.1.0"
PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")
QUERY, PATH = "query", "path"
EVENTS, LINES = "text/event-stream", "application/jsonlines"
JSON = "application/json"
TEXT = {"type": "string"}
PICTURES = ("image/jpeg", "image/png")
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
# What a GET answers.
REPLIES: dict[str, Json] = {
    "/ping": {},
    "/metrics": {PROMETHEUS: {"schema": {"type": "string"}}},
    "/models": {JSON: {"schema": {"$ref": "#/components/schemas/Models"}}},
    "/execution-parameters": {JSON: {"schema": {"$ref": "#/components/schemas/ExecutionParameters"}}},
    "/openapi.json": {JSON: {"schema": {"type": "object"}}},
    "/examples/{name}": {"*/*": {"schema": {}}},
}


def document(
    routes: Iterable[tuple[str, str, str]],
    models: Iterable[ServedModel],
    replies: Mapping[str, Any],
    versions: Mapping[str, list[str]],
) -> Json:
    """`routes` are (path as Flask has it, method, description); `replies` a reply of each model to its example, and
    `versions` its versions, by name."""
    found = {model.name: model for model in models}
    schemas = Schemas(found.values(), replies, versions)
    paths: dict[str, Json] = {}
    for rule, method, text in routes:
        for path, operation in _operations(rule, method, found, schemas):
            summary, _, more = text.partition("\n")
            about = {
                "operationId": _identifier(method, path),
                "tags": [_tag(path)],
                "summary": summary.strip(),
                **operation,
            }
            paths.setdefault(path, {})[method.lower()] = about | ({"description": more.strip()} if more.strip() else {})
    return {
        "openapi": OPENAPI,
        "info": {"title": "Several models on one endpoint", "version": VERSION, "license": {"name": "Apache-2.0"}},
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": schemas.components(), "responses": dict(_errors())},
    }


def _operations(
    rule: str, method: str, models: Mapping[str, ServedModel], schemas: Schemas
) -> Iterator[tuple[str, Json]]:
    """The operations of a route: of one that names a model in its path, one for each model, as each has its own."""
    path = PARAMETER.sub(r"{\1}", rule)
    if path.startswith("/v2/models/{name}"):
        for name in models:
            own = path.replace("{name}", name)
            yield own, _of_model(name, own, schemas)
    elif path == "/invocations":
        yield path, _invocations(schemas)
    elif path in REPLIES:
        given = [_in_path("name", {"type": "string", "enum": sorted(models)})] if "{name}" in path else []
        yield path, _operation(given, None, REPLIES[path])
    else:  # of multi-model mode
        body: Json | None = None if method in ("GET", "DELETE") else {JSON: {"schema": {}}}
        names = [_in_path(name, {"type": "string"}) for name in PARAMETER.findall(rule)]
        yield path, _operation(names, body, {JSON: {"schema": {}}})


def _invocations(schemas: Schemas) -> Json:
    body = {JSON: schemas.requests(), **schemas.raw()}
    reply = {JSON: schemas.replies(), LINES: {"schema": TEXT}, EVENTS: {"schema": {}}}
    pictures: Json = {kind: {"schema": {}} for kind in PICTURES}
    given = [
        _of_raw("model_name", "the model", schemas.names),
        _of_raw("model_version", "its version; without it the latest", schemas.all_versions()),
    ]
    return _operation(given, body, reply | pictures)


def _of_model(name: str, path: str, schemas: Schemas) -> Json:
    given = [_in_path("version", {"type": "string", "enum": schemas.versions[name]})] if "{version}" in path else []
    kind = path.rpartition("/")[2]
    if kind == "infer":
        return _operation(given, {JSON: schemas.tensors(name)}, {JSON: schemas.outputs(name)})
    reply = {EVENTS: {"schema": {}}} if kind == "generate_stream" else {JSON: {"schema": {"type": "object"}}}
    return _operation(given, {JSON: schemas.flat(name)}, reply)


def _of_raw(name: str, what: str, values: list[str]) -> Json:
    text = f"{what} of a body that is no JSON; a JSON body names its own"
    return {"name": name, "in": QUERY, "description": text, "schema": {"type": "string", "enum": values}}


def _in_path(name: str, schema: Json) -> Json:
    return {"name": name, "in": PATH, "required": True, "schema": schema}


def _operation(parameters: list[Json], body: Json | None, reply: Json) -> Json:
    found: Json = {"responses": {"200": {"description": "the answer", **({"content": reply} if reply else {})}}}
    found["responses"] |= {status: {"$ref": f"#/components/responses/{status}"} for status in described()}
    if parameters:
        found["parameters"] = parameters
    return found | ({"requestBody": {"required": True, "content": body}} if body else {})


def _errors() -> Iterator[tuple[str, Json]]:
    for status, codes in described().items():
        content = {JSON: {"schema": {"$ref": f"#/components/schemas/{ERROR}"}}}
        yield status, {"description": f"an error; its code is one of {codes}", "content": content}


def _tag(path: str) -> str:
    if path.startswith("/v2/"):
        return "kserve"
    return "operations" if path in ("/ping", "/metrics", "/execution-parameters") else "models"


def _identifier(method: str, path: str) -> str:
    words = re.findall(r"\w+", path)
    return "_".join([method.lower(), *words])
