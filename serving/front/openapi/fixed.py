"""What stands in /openapi.json whatever is served: errors, lists of models, and how archives are loaded."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from serving.errors import ServingError
from serving.multimodel.control import LONGEST_NAME

Json = dict[str, Any]
TEXT = {"type": "string"}
# The errors that nginx.conf answers itself.
OF_NGINX = {
    "400": ["invalid_request"],
    "405": ["method_not_allowed"],
    "413": ["payload_too_large"],
    "414": ["invalid_request"],
    "431": ["invalid_request"],
    "500": ["internal_error"],
    "503": ["frontend_unavailable", "overloaded"],
    "504": ["timeout"],
}


def described() -> dict[str, str]:
    """The codes of each status that an error may have."""
    codes = defaultdict(set, {status: set(found) for status, found in OF_NGINX.items()})
    for kind in _leaves(ServingError):
        codes[str(kind.status)].add(kind.code)
    return {status: ", ".join(sorted(found)) for status, found in sorted(codes.items())}


def _leaves(kind: type[ServingError]) -> Iterable[type[ServingError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _leaves(child)


ERROR = {
    "type": "object",
    "description": "what was wrong and what to do",
    "properties": {name: {"type": "string"} for name in ("error", "code", "request_id")},
    "required": ["error", "code", "request_id"],
    "examples": [{"error": "the body is empty; …", "code": "invalid_request", "request_id": "5f0c…"}],
}
_TENSOR = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "optional": {"type": "boolean"},
    },
    "required": ["name", "datatype", "shape", "optional"],
}
_STATE = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("version", "state", "reason")},
    "required": ["version", "state", "reason"],
}
_MODEL = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "versions": {"type": "array", "items": _STATE},
        "client": {"type": ["string", "null"]},
        "codec": {"type": "string"},
        "instance": {"type": "string"},
        "max_batch_size": {"type": "integer"},
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {"type": "array", "items": _TENSOR},
        "parameters": {"type": "array", "items": {"type": "object"}},
        "error": {"type": "string"},
    },
    "required": ["name", "versions"],
}
_REFUSED = {
    "type": "object",
    "properties": {each: {"type": "array", "items": {"type": "string"}} for each in ("models", "reasons")},
}
MODELS = {
    "type": "object",
    "properties": {"models": {"type": "array", "items": _MODEL}, "refused": {"type": "array", "items": _REFUSED}},
    "required": ["models"],
}
EXECUTION_PARAMETERS = {
    "type": "object",
    "properties": {
        "MaxConcurrentTransforms": {"type": "integer"},
        "BatchStrategy": {"type": "string"},
        "MaxPayloadInMB": {"type": "integer"},
    },
    "required": ["MaxConcurrentTransforms", "BatchStrategy", "MaxPayloadInMB"],
}
LOADED = {"type": "object", "properties": {"modelName": TEXT, "modelUrl": TEXT}, "required": ["modelName", "modelUrl"]}
LOADED_MODELS = {
    "type": "object",
    "properties": {"models": {"type": "array", "items": LOADED}, "nextPageToken": TEXT},
    "required": ["models"],
}
LOAD = {
    "type": "object",
    "properties": {
        "model_name": TEXT | {"minLength": 1, "maxLength": LONGEST_NAME},
        "url": TEXT | {"examples": ["/opt/ml/models/1f3a/model"]},
    },
    "required": ["model_name", "url"],
}
OF_SEVERAL: dict[str, Json] = {"Error": ERROR, "Models": MODELS, "ExecutionParameters": EXECUTION_PARAMETERS}
OF_MULTI_MODEL: dict[str, Json] = {"Error": ERROR, "Load": LOAD, "Loaded": LOADED, "LoadedModels": LOADED_MODELS}
