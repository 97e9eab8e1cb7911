"""/openapi.json: the routes of the app, and for each model that is served now its bodies and replies, as OpenAPI 3.1.

The routes and their descriptions are the app's own; the schemas are made of what checks a request: the models' tensors,
their clients' codecs and parameters, and the tree of errors.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from serving import VERSION
from serving.bodies.kserve import HEADER_LENGTH
from serving.front.metrics import CONTENT_TYPE as PROMETHEUS
from serving.front.openapi.bodies import EVENT, EVENTS_TYPE, Bodies
from serving.front.openapi.fixed import OF_MULTI_MODEL, OF_SEVERAL, Json, described
from serving.front.openapi.schemas import Schemas
from serving.headers import JSON_TYPE as JSON
from serving.headers import TARGET_MODEL
from serving.multimodel.control import LARGEST_PAGE, PAGE
from serving.served_model import ServedModel

OPENAPI = "3.1.0"
PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")
QUERY, PATH, HEADER = "query", "path", "header"
TEXT: Json = {"type": "string"}
LENGTH = "the length of the JSON before the binary tensors; without it the body is JSON alone"
# What a GET answers.
REPLIES: dict[str, Json] = {
    "/ping": {},
    "/metrics": {PROMETHEUS: {"schema": TEXT}},
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
    archives: Mapping[str, str] | None = None,
) -> Json:
    """`routes` are (path as Flask has it, method, description); `replies` a reply of each model to its example, and
    `versions` its versions, by name. In multi-model mode `archives` has the models' names by those that the platform
    loaded them by."""
    schemas = Schemas(models, versions)
    operations = _Operations(schemas, Bodies(schemas, replies), archives)
    paths: dict[str, Json] = {}
    for rule, method, text in routes:
        for path, operation in operations.of(rule, method):
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
        "components": {"schemas": operations.components(), "responses": dict(_errors())},
    }


class _Operations:
    """What each route takes and gives."""

    def __init__(self, schemas: Schemas, bodies: Bodies, archives: Mapping[str, str] | None) -> None:
        self._schemas, self._bodies = schemas, bodies
        self._names = sorted(schemas.models)
        self._called = {name: name for name in self._names} if archives is None else archives  # in paths
        self._is_multi_model = archives is not None

    def components(self) -> dict[str, Json]:
        return (OF_MULTI_MODEL if self._is_multi_model else OF_SEVERAL) | self._schemas.components()

    def of(self, rule: str, method: str) -> Iterator[tuple[str, Json]]:
        """Of one that names a model in its path, one for each model, as each has its own."""
        path = PARAMETER.sub(r"{\1}", rule)
        if path.startswith("/v2/models/{name}"):
            for called, name in self._called.items():
                yield path.replace("{name}", quote(called, safe="")), self._kserve(name, path)
        elif path == "/models/{name}/invoke":
            for called, name in self._called.items():
                yield path.replace("{name}", quote(called, safe="")), self._inference([name], self._parameters(name))
        elif path == "/invocations":
            yield path, self._inference(self._names, self._in_query())
        elif self._is_multi_model and path.startswith("/models"):
            yield path, _managing(path, method)
        else:
            given = [_in_path("name", TEXT | {"enum": self._names})] if "{name}" in path else []
            yield path, _operation(given, None, REPLIES[path])

    def _inference(self, names: list[str], given: list[Json]) -> Json:
        return _operation(given, self._bodies.taken(names), self._bodies.given(names))

    def _parameters(self, name: str) -> list[Json]:
        return [
            _given(each, QUERY, schema["description"], schema) for each, schema in self._schemas.query(name).items()
        ]

    def _in_query(self) -> list[Json]:
        """The parameters of a model, where there is but one: which of several models' are right depends on the body,
        and OpenAPI has no words for that."""
        about = "of a body that does not name it itself"
        versions = self._schemas.all_versions()
        return [
            _given("model_name", QUERY, f"the model, {about}", TEXT | {"enum": self._names}),
            _given("model_version", QUERY, f"its version, {about}; else the latest", TEXT | {"enum": versions}),
            *(self._parameters(self._names[0]) if len(self._names) == 1 else []),
        ]

    def _kserve(self, name: str, path: str) -> Json:
        given = [_in_path("version", TEXT | {"enum": self._schemas.versions[name]})] if "{version}" in path else []
        kind = path.rpartition("/")[2]
        if kind == "infer":
            length = _given(HEADER_LENGTH, HEADER, LENGTH, {"type": "integer", "minimum": 0})
            found = _operation([*given, length], self._bodies.tensors(name), self._bodies.outputs(name))
            found["responses"]["200"]["headers"] = {HEADER_LENGTH: {"description": LENGTH, "schema": length["schema"]}}
            return found
        parts = {EVENTS_TYPE: {"schema": EVENT}}
        reply = parts if kind == "generate_stream" else {JSON: {"schema": {"type": "object"}}}
        return _operation(given, self._bodies.flat(name), reply)


def _managing(path: str, method: str) -> Json:
    """The routes of multi-model mode that load, unload and list."""
    name = [_in_path("name", TEXT)] if "{name}" in path else []
    if method == "DELETE":
        return _operation(name, None, {})
    if method == "POST":
        header = _given(TARGET_MODEL, HEADER, "what callers name the model by; else model_name", TEXT)
        return _operation([header], {JSON: _reference("Load")}, {JSON: _reference("Loaded")})
    if name:
        return _operation(name, None, {JSON: _reference("Loaded")})
    limit = {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": PAGE}
    given = [_given("limit", QUERY, "most models", limit), _given("next_page_token", QUERY, "of the page before", TEXT)]
    return _operation(given, None, {JSON: _reference("LoadedModels")})


def _reference(name: str) -> Json:
    return {"schema": {"$ref": f"#/components/schemas/{name}"}}


def _given(name: str, place: str, text: str, schema: Json) -> Json:
    return {"name": name, "in": place, "description": text, "schema": schema}


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
        yield status, {"description": f"an error; its code is one of {codes}", "content": {JSON: _reference("Error")}}


def _tag(path: str) -> str:
    if path.startswith("/v2/"):
        return "kserve"
    return "operations" if path in ("/ping", "/metrics", "/execution-parameters") else "models"


def _identifier(method: str, path: str) -> str:
    words = re.findall(r"\w+", path)
    return "_".join([method.lower(), *words])
