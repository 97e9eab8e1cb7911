"""The schemas of /openapi.json: of each model's bodies and replies, and of errors."""

import base64
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from clients.base import TensorSpec
from serving.budget import MOST_INSTANCES
from serving.codecs import Codec
from serving.errors import ServingError
from serving.images import FORMATS
from serving.served_model import ServedModel

Json = dict[str, Any]
ERROR = "Error"
# Those of nginx.conf: what it answers itself.
OF_NGINX = {
    "400": ["invalid_request"],
    "405": ["method_not_allowed"],
    "408": ["too_slow"],
    "413": ["payload_too_large"],
    "414": ["invalid_request"],
    "431": ["invalid_request"],
    "500": ["internal_error"],
    "503": ["frontend_unavailable", "disk_full", "overloaded"],
    "504": ["timeout"],
}
MOST_VALUES = 64  # of a tensor that stands as an example
WHOLE = re.compile(r"U?INT(8|16|32|64)")
NOT_RAW = ("application/json", "multipart/form-data")
PICTURES = ("image", "encoded image")


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


class Schemas:
    """`replies` and `versions` as openapi.document has them."""

    def __init__(
        self, models: Iterable[ServedModel], replies: Mapping[str, Any], versions: Mapping[str, list[str]]
    ) -> None:
        self._models = {model.name: model for model in models}
        self._replies, self.versions = replies, versions
        self._clients = {name: model for name, model in self._models.items() if model.client}

    @property
    def names(self) -> list[str]:
        return sorted(self._models)

    def all_versions(self) -> list[str]:
        return sorted({version for versions in self.versions.values() for version in versions})

    def requests(self) -> Json:
        """JSON bodies of /invocations."""
        kinds = [_reference(name, "Request") for name in self._clients] or [{"type": "object"}]
        examples = {name: {"value": self._request_example(name)} for name in self._clients}
        return {"schema": _one_of(kinds), "examples": examples}

    def replies(self) -> Json:
        examples = {name: {"value": self._replies[name]} for name in self._clients if name in self._replies}
        kinds = [_reference(name, "Reply") for name in self._clients] or [{"type": "object"}]
        return {"schema": _one_of(kinds), "examples": examples}

    def raw(self) -> Json:
        """Bodies that are one instance as it is; the query string names their model."""
        codecs = [model.require_client().codec for model in self._clients.values()]
        kinds = sorted({kind for codec in codecs for kind in _media_types(codec)})
        files, text = {"type": "string", "format": "binary"}, {"type": "string", "minLength": 1}
        return {kind: {"schema": text if kind.startswith("text/") else files} for kind in kinds}

    def tensors(self, name: str) -> Json:
        example = _tensors_example(self._models[name])
        return {"schema": _reference(name, "Tensors")} | ({"example": example} if example else {})

    def outputs(self, name: str) -> Json:
        return {"schema": _reference(name, "Outputs")}

    def flat(self, name: str) -> Json:
        inputs = self._models[name].model.inputs
        properties = {spec.name: {"description": _words(spec)} for spec in inputs}
        return {"schema": {"type": "object", "minProperties": 1, "properties": properties}}

    def components(self) -> dict[str, Json]:
        found: dict[str, Json] = {ERROR: _ERROR, "Models": _MODELS, "ExecutionParameters": _EXECUTION_PARAMETERS}
        for name, model in self._models.items():
            found[_name(name, "Tensors")] = _tensors(model)
            found[_name(name, "Outputs")] = _outputs(model)
            if model.client:
                found[_name(name, "Request")] = self._request(name)
                found[_name(name, "Reply")] = self._reply(name)
        return found

    def _request(self, name: str) -> Json:
        client = self._models[name].require_client()
        schemas = client.parameter_schemas()
        parameters = {
            each.name: schemas[each.name] | {"description": each.help, "default": _plain(client.defaults[each.name])}
            for each in client.parameters
        }
        instances = {"type": "array", "minItems": 1, "maxItems": MOST_INSTANCES, "items": client.codec.schema()}
        properties = {
            "model_name": {"const": name},
            "model_version": _version(self.versions[name]),
            "instances": instances,
            "parameters": {"type": ["object", "null"], "additionalProperties": False, "properties": parameters},
        }
        return _object(properties, required=["model_name", "instances"])

    def _reply(self, name: str) -> Json:
        predictions = {"type": "array", "items": self._models[name].require_client().prediction_schema()}
        properties = self._about(name) | {"predictions": predictions}
        return {"type": "object", "properties": properties, "required": list(properties)}

    def _about(self, name: str) -> Json:
        return {"model_name": {"const": name}, "model_version": {"type": "string", "enum": self.versions[name]}}

    def _request_example(self, name: str) -> Json:
        served = self._models[name]
        codec, example = served.require_client().codec, example_of(served)
        if codec.name in PICTURES:
            instance: Any = {codec.part: base64.b64encode(example).decode()}
        elif codec.name == "text":
            instance = example.decode().strip()
        else:
            instance = orjson.loads(example)
        return {"model_name": name, "instances": [instance]}


def _plain(value: Any) -> Any:
    """orjson writes no kind of tuple but tuple."""
    return list(value) if isinstance(value, tuple) else value


def example_of(served: ServedModel) -> bytes:
    """The model's example; of pictures the client's own, which is small."""
    client = served.require_client()
    return client.example if client.codec.name in PICTURES else served.example()


def _media_types(codec: Codec) -> Iterable[str]:
    for kind in codec.media_types:
        if kind == "image/*":
            yield from (f"image/{each.lower()}" for each in FORMATS)
        elif kind not in NOT_RAW:
            yield kind


def _name(model: str, kind: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', model)}{kind}"


def _reference(model: str, kind: str) -> Json:
    return {"$ref": f"#/components/schemas/{_name(model, kind)}"}


def _one_of(kinds: list[Json]) -> Json:
    return kinds[0] if len(kinds) == 1 else {"oneOf": kinds}


def _object(properties: Json, required: Iterable[str]) -> Json:
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": list(required)}


def _version(versions: list[str]) -> Json:
    """A number, its digits, or none, which is the latest."""
    numbers = [int(version) for version in versions if version.isdecimal()]
    kinds = [{"type": "string", "enum": ["", *versions]}, {"type": "integer", "enum": numbers}, {"type": "null"}]
    return {"anyOf": kinds}


def _words(spec: TensorSpec) -> str:
    return f"{spec.datatype} {list(spec.shape)}, without the batch dimension"


def _shape(model: ServedModel, spec: TensorSpec) -> list[int]:
    """The smallest that fits."""
    batch = [1] if model.model.max_batch_size else []
    return batch + [1 if side < 0 else side for side in spec.shape]


def _tensors(model: ServedModel) -> Json:
    inputs = model.model.inputs
    most, least = len(inputs), len([spec for spec in inputs if not spec.optional])
    items = _one_of([_input(model, spec) for spec in inputs]) if inputs else {}
    tensors = {"type": "array", "minItems": max(least, 1), "maxItems": max(most, 1), "items": items}
    names = {"type": "string", "enum": [spec.name for spec in model.model.outputs]}
    outputs = {"type": "array", "items": _object({"name": names}, ["name"])}
    properties = {"id": {"type": "string"}, "inputs": tensors, "outputs": outputs}
    return {"type": "object", "properties": properties, "required": ["inputs"]}  # further keys are passed over


def _input(model: ServedModel, spec: TensorSpec) -> Json:
    rank = len(_shape(model, spec))
    sides = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": rank, "maxItems": rank}
    kind = {"name": {"const": spec.name}, "datatype": {"const": spec.datatype}}
    return _object(kind | {"shape": sides, "data": _data(spec)}, [*kind, "shape", "data"])


def _data(spec: TensorSpec, *more: str) -> Json:
    kinds = {"BYTES": "string", "BOOL": "boolean"}
    kind = kinds.get(spec.datatype) or ("integer" if WHOLE.fullmatch(spec.datatype) else "number")
    return {"type": "array", "items": {"type": [kind, *more] if more else kind}}


def _outputs(model: ServedModel) -> Json:
    outputs = [
        {
            "type": "object",
            "properties": {
                "name": {"const": spec.name},
                "datatype": {"const": spec.datatype},
                "shape": {"type": "array", "items": {"type": "integer"}},
                "data": _data(spec, "null"),
            },
            "required": ["name", "datatype", "shape", "data"],
        }
        for spec in model.model.outputs
    ]
    properties = {
        "model_name": {"const": model.name},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "outputs": {"type": "array", "items": _one_of(outputs) if outputs else {}},
    }
    return {"type": "object", "properties": properties, "required": ["model_name", "model_version", "outputs"]}


def _tensors_example(model: ServedModel) -> Json | None:
    """Zeros, where they are few."""
    shapes = {spec: _shape(model, spec) for spec in model.model.inputs}
    if any(math.prod(shape) > MOST_VALUES for shape in shapes.values()):
        return None
    return {"inputs": [_zeros(spec, shape) for spec, shape in shapes.items()]}


def _zeros(spec: TensorSpec, shape: list[int]) -> Json:
    zero = {"BYTES": "", "BOOL": False}.get(spec.datatype, 0)
    return {"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": [zero] * math.prod(shape)}


_ERROR = {
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
_MODELS = {
    "type": "object",
    "properties": {"models": {"type": "array", "items": _MODEL}, "refused": {"type": "array", "items": _REFUSED}},
    "required": ["models"],
}
_EXECUTION_PARAMETERS = {
    "type": "object",
    "properties": {
        "MaxConcurrentTransforms": {"type": "integer"},
        "BatchStrategy": {"type": "string"},
        "MaxPayloadInMB": {"type": "integer"},
    },
    "required": ["MaxConcurrentTransforms", "BatchStrategy", "MaxPayloadInMB"],
}
