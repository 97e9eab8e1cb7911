"""The schemas of /openapi.json: of each model's bodies and replies."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from clients.base import ModelClient, TensorSpec
from serving.budget import MOST_INSTANCES
from serving.codecs import FORM
from serving.front.openapi.fixed import Json
from serving.served_model import ServedModel

# The kinds of schemas that a model has; the last six those with a client.
TENSORS, OUTPUTS = "Tensors", "Outputs"
REQUEST, INPUTS, PAYLOAD, REPLY, RESULT, FILES = "Request", "Inputs", "Payload", "Reply", "Result", "Form"
ITSELF = "Instance"  # as the whole body
MOST_VALUES = 64  # of a tensor that stands as an example
WHOLE = re.compile(r"U?INT(8|16|32|64)")
PICTURE_CODECS = ("image", "encoded image")


class Schemas:
    """`versions` as openapi.document has them."""

    def __init__(self, models: Iterable[ServedModel], versions: Mapping[str, list[str]]) -> None:
        self.models = {model.name: model for model in models}
        self.versions = versions

    def query(self, name: str) -> Mapping[str, Json]:
        """The schemas of the parameters that a model takes in the query string."""
        client = self.models[name].client
        return _as_text(client) if client else {}

    def all_versions(self) -> list[str]:
        return sorted({version for versions in self.versions.values() for version in versions})

    def components(self) -> dict[str, Json]:
        found: dict[str, Json] = {}
        for name, model in self.models.items():
            found[component(name, TENSORS)] = _tensors(model)
            found[component(name, OUTPUTS)] = _outputs(model)
            if model.client:
                found |= {component(name, kind): schema for kind, schema in self._of_client(name, model.client)}
        return found

    def _of_client(self, name: str, client: ModelClient) -> Iterable[tuple[str, Json]]:
        item, prediction = client.codec.schema(), client.prediction_schema()
        several = {"type": "array", "minItems": 1, "maxItems": MOST_INSTANCES, "items": item}
        yield REQUEST, self._request(name, {"instances": several}, ["instances"])
        yield INPUTS, self._request(name, {"inputs": {"anyOf": [item, several]}}, ["inputs"])
        yield PAYLOAD, self._payload(name, client)
        if records := self.records(name):
            each = (self._request(name, record["properties"], record.get("required", ())) for record in records)
            yield ITSELF, any_of(list(each))
        yield REPLY, self._reply(name, {"predictions": {"type": "array", "items": prediction}})
        yield RESULT, _object({"modelname": {"const": name}, "result": prediction}, ["modelname", "result"])
        if FORM in client.codec.media_types:
            yield FILES, self._form(name, client)

    def _request(self, name: str, fields: Json, required: Iterable[str]) -> Json:
        """A body that names its model and holds instances in these fields."""
        about = {"model_name": {"const": name}, "model_version": _version(self.versions[name])}
        parameters = _parameters(self.models[name].require_client())
        return _object({**about, **fields, "parameters": parameters}, ["model_name", *required])

    def records(self, name: str) -> list[Json]:
        """The objects that an instance may be, where it may be the whole body (FlatBody.meant_for)."""
        client = self.models[name].require_client()
        item = client.codec.schema()
        if not (client.keys or client.codec.keys):
            return []
        return [each for each in item.get("oneOf", item.get("anyOf", [item])) if "properties" in each]

    def _payload(self, name: str, client: ModelClient) -> Json:
        item = client.codec.schema()
        payload = _object({"img": item["properties"][client.codec.part]}, ["img"]) if is_picture(client) else item
        properties = {"modelname": {"const": name}, "payload": payload, "parameters": _parameters(client)}
        return _object(properties, ["modelname", "payload"])

    def _form(self, name: str, client: ModelClient) -> Json:
        """Each file is an instance, whatever its part is called; each other part is a parameter."""
        file = {"type": "string", "format": "binary"}
        about = {"model_name": {"const": name}, "model_version": {"type": "string", "enum": self.versions[name]}}
        files = {"type": "array", "minItems": 1, "items": file}
        return _object(about | _as_text(client) | {"image": files}, ["model_name", "image"])

    def _reply(self, name: str, predictions: Json) -> Json:
        properties = self._about(name) | predictions
        return {"type": "object", "properties": properties, "required": list(properties)}

    def _about(self, name: str) -> Json:
        return {"model_name": {"const": name}, "model_version": {"type": "string", "enum": self.versions[name]}}


def _parameters(client: ModelClient) -> Json:
    schemas = client.parameter_schemas()
    properties = {
        each.name: schemas[each.name] | {"description": each.help, "default": _plain(client.defaults[each.name])}
        for each in client.parameters
    }
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _as_text(client: ModelClient) -> dict[str, Json]:
    """The parameters in a form or a query string, where a list is written with commas."""
    return {name: _joined(schema) for name, schema in _parameters(client)["properties"].items()}


def _joined(schema: Json) -> Json:
    if schema.get("type") != "array":
        return schema
    return {"type": "string", "description": f"{schema['description']}; several are parted by commas"}


def _plain(value: Any) -> Any:
    """orjson writes no kind of tuple but tuple."""
    return list(value) if isinstance(value, tuple) else value


def is_picture(client: ModelClient) -> bool:
    return client.codec.name in PICTURE_CODECS


def example_of(served: ServedModel) -> bytes:
    """The model's example; of pictures the client's own, which is small."""
    client = served.require_client()
    return client.example if is_picture(client) else served.example()


def component(model: str, kind: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', model)}{kind}"


def reference(model: str, kind: str) -> Json:
    return {"$ref": f"#/components/schemas/{component(model, kind)}"}


def any_of(kinds: list[Json]) -> Json:
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def _object(properties: Json, required: Iterable[str]) -> Json:
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": list(required)}


def _version(versions: list[str]) -> Json:
    """A number, its digits, or none, which is the latest."""
    numbers = [int(version) for version in versions if version.isdecimal()]
    kinds = [{"type": "string", "enum": ["", *versions]}, {"type": "integer", "enum": numbers}, {"type": "null"}]
    return {"anyOf": kinds}


def words(spec: TensorSpec) -> str:
    return f"{spec.datatype} {list(spec.shape)}, without the batch dimension"


def _shape(model: ServedModel, spec: TensorSpec) -> list[int]:
    """The smallest that fits."""
    batch = [1] if model.model.max_batch_size else []
    return batch + [1 if side < 0 else side for side in spec.shape]


def _tensors(model: ServedModel) -> Json:
    inputs = model.model.inputs
    most, least = len(inputs), len([spec for spec in inputs if not spec.optional])
    items = any_of([_input(model, spec) for spec in inputs]) if inputs else {}
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
        "outputs": {"type": "array", "items": any_of(outputs) if outputs else {}},
    }
    return {"type": "object", "properties": properties, "required": ["model_name", "model_version", "outputs"]}


def tensors_example(model: ServedModel) -> Json | None:
    """Zeros, where they are few."""
    shapes = {spec: _shape(model, spec) for spec in model.model.inputs}
    if any(math.prod(shape) > MOST_VALUES for shape in shapes.values()):
        return None
    return {"inputs": [_zeros(spec, shape) for spec, shape in shapes.items()]}


def _zeros(spec: TensorSpec, shape: list[int]) -> Json:
    zero = {"BYTES": "", "BOOL": False}.get(spec.datatype, 0)
    return {"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": [zero] * math.prod(shape)}
