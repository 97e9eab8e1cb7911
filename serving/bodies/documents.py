"""Determines from the keys of a JSON object which kind of body it is, and reads the flat JSON of
Triton's generate extension.

In flat JSON, such as {"text_input": "…", "max_tokens": 8}, a key that is not the name of an input
is a parameter. If the model has a client, a flat object can also be an instance, such as
{"text": "…"}, or contain instances in the format of Hugging Face's toolkit: {"inputs": "…"}.

JSON is parsed only once, except for large bodies that simdjson cannot read, the first JSON line,
which may name the model (lines.py), and bodies that are not declared as JSON but look like it
(reading.py, instances.py). Each JSON library has its own purpose:

- msgspec reads all JSON that simdjson does not read. It checks each shape against a Struct, which
  is also in /openapi.json, and its errors say where the mistake is.
- simdjson reads large tensors, because it copies numbers into numpy without creating Python
  objects.
- orjson writes replies from numpy's arrays.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import msgspec
import orjson
import simdjson

from clients.base import TensorSpec
from serving.bodies import schemas
from serving.bodies.bare import rows_of, tensors_of
from serving.bodies.decoder import Item
from serving.bodies.instances import Instances, items_of
from serving.bodies.kserve import RawBody, TensorBody, check_misspelt, filled
from serving.bodies.schemas import JsonObject, read
from serving.bodies.values import (
    flat_array,
    json_values,
    request_parameters,
    reserve_json,
    write_items,
)
from serving.budget import MOST_NAMED, admit_json, turn
from serving.codecs import ROW
from serving.errors import InvalidRequest, NotAcceptable
from serving.job import Job, Reply, Step
from serving.model_status.served_model import ServedModel
from serving.named_value import unknown, whole_number
from serving.request import RESERVED, Request, Target
from serving.request_memory import simdjson_memory
from serving.sessions import SEQUENCE_END
from serving.triton.tensors import InferReply, Tensor

# an object in "inputs" with one of these keys is a KServe tensor
TENSOR_KEYS = {"name", "shape", "datatype", "data"}
# The maximum number of keys that simdjson reads in a document of tensors, and in each tensor.
# KServe defines 4 keys for a document and 5 for a tensor.
MOST_KEYS = 32
# For JSON of this many bytes or more, simdjson is faster, because it does not create a Python
# object for each number.
LARGE = 2 * 1024
# keys of a flat object that are options of the request rather than fields of an instance
OPTION_KEYS = {*RESERVED, "parameters"}
SHAPES = (
    '{"instances": […]}, {"inputs": […]} with KServe v2 tensors or instances, an instance '
    'that is an object, or {"modelname": …, "payload": {"img" or "text": …}}'
)


@dataclass(frozen=True)
class FlatBody:
    """A flat JSON object. It may contain instances for the model's client or, unless a stream is
    requested or `generates` is true, bare tensors. Any other object has inputs and parameters as
    its keys (FlatJob). It is answered with a stream if one is requested, or else in one piece if
    `generates` is true, and is otherwise refused. `generates` is true on the routes …/generate and
    …/generate_stream, and if SAGEMAKER_TRITON_INFERENCE_TYPE is not "infer". If the answer must be
    a stream, `stream` is its media type."""

    document: JsonObject
    generates: bool = False
    stream: str = ""
    length: int = 0  # the body's size in bytes

    @cached_property
    def flat(self) -> schemas.Flat:
        return read(schemas.Flat, self.document)

    @property
    def named(self) -> Target:
        return self.flat.target()

    def bind(self, served: ServedModel, request: Request) -> Job:
        if self.stream:
            request = replace(request, stream=self.stream)
        if instances := self.instances_for(served):
            return instances.bind(served, request)
        names = {spec.name for spec in served.model.inputs}
        has_bare_tensors = "inputs" in self.document and "inputs" not in names
        if has_bare_tensors and not (self.generates or request.stream):
            body = read(schemas.Inputs, self.document)
            tensors = tensors_of(served, body.inputs, self.length, body.parameters)
            return tensors.bind(served, request)
        return FlatJob(served, request, self)

    def instances_for(self, served: ServedModel) -> Instances | None:
        """Return the object as Instances for the model's client. It may be an instance itself, as
        any object is for a model of tables. Or it may have the format of Hugging Face's toolkit,
        {"inputs": …, "parameters": {…}}.

        Return None if it is neither, if the model has no client, or if the body `generates` and a
        key is the name of one of the model's inputs. Raise a ServingError if the object is invalid.
        """
        client = served.client
        names = {spec.name for spec in served.model.inputs}
        names_an_input = not names.isdisjoint(self.document)
        if client is None or (self.generates and names_an_input):
            return None
        if "inputs" in self.document:
            return read_instances(self.document, "inputs")
        fields = {key: value for key, value in self.document.items() if key not in OPTION_KEYS}
        has_instance_key = not fields.keys().isdisjoint(client.instance_keys())
        if client.codec is ROW or has_instance_key:
            items = [Item("body", value=fields)]
            return Instances(items, self.flat.parameters or {}, named=self.named)
        return None


class FlatJob(Job):
    """Calls the model with a flat object. The model may return any number of responses. If the
    reply is in one piece, there must be exactly one response, as in Triton's generate extension."""

    def __init__(self, served: ServedModel, request: Request, body: FlatBody) -> None:
        """Raise InvalidRequest if a field of the object or the session's id is invalid, or if
        neither a stream nor Triton's generate extension was requested: only these accept a flat
        object. Raise SessionNotFound if the session's id does not fit the model."""
        self.document = body.document
        self.parameters = body.flat.parameters or {}
        self.id = str(body.flat.id or "")
        super().__init__(served, request, self.document, self.parameters)
        self.is_decoupled = True
        if not (request.stream or body.generates):
            raise self._refusal()

    def _refusal(self) -> InvalidRequest:
        """Return the error for an object for which neither a stream nor Triton's generate extension
        was requested. The error names the first key that is an input or is unknown, if any."""
        client = self.served.client
        text = f"the body must have one of the shapes {SHAPES}"
        instance_keys = client.instance_keys() if client else ()
        known = {*WHOLE_BODY_KEYS, *instance_keys}
        inputs = {spec.name for spec in self.served.model.inputs}
        for key in self.document:
            if key in inputs:
                hint = f"keys may name inputs, as '{key}' does, on …/generate and in streams"
                return InvalidRequest(f"{text}; {hint}")
            if key not in OPTION_KEYS | known:
                return InvalidRequest(f"{unknown('key', key, known)}; {text}")
        return InvalidRequest(text)

    def prepare(self, before: Step | None = None) -> Step:
        """Return the job's only step. As in Triton's generate extension, the value of an input,
        which may be a list, is never split into several rows."""
        model = self.served.model
        reserved = OPTION_KEYS | {"id"}
        if self.session:
            reserved |= {SEQUENCE_END}
        specs = {spec.name: spec for spec in model.inputs}
        inputs = []
        parameters = {}
        for key, value in self.document.items():
            if key in reserved:
                continue
            if key in specs:
                inputs.append(self._tensor(specs[key], value))
            else:
                parameters[key] = value
        if not (inputs or model.takes_nothing):
            keys = sorted(islice(parameters, 8))
            names = ", ".join(specs)
            raise InvalidRequest(f"none of {keys} is an input of model '{model.name}': {names}")
        return Step(inputs, request_parameters(self, parameters | self.parameters))

    def _tensor(self, spec: TensorSpec, value: Any) -> Tensor:
        """Return the value of an input as a tensor. The tensor gets the shape that the model
        declares if the number of values fits that shape, and is one-dimensional otherwise. If the
        model has a batch dimension, the tensor becomes a batch of one row."""
        try:
            flat = flat_array(spec.datatype, value)
        except InvalidRequest as err:
            raise InvalidRequest(f"input '{spec.name}': {err}") from err
        shape = filled(spec.shape, flat.size) or (flat.size,)
        rows = (1, *shape) if self.served.model.max_batch_size else shape
        return Tensor.of(spec.name, flat.reshape(rows), spec.datatype)

    def reply(self, results: Iterator[InferReply]) -> Reply:
        responses = list(islice(results, 2))
        if len(responses) != 1:
            raise NotAcceptable(
                f"model '{self.served.name}' gave none or several responses, and generate "
                "is for exactly one: ask for them with Accept: text/event-stream or Accept: "
                "application/jsonlines"
            )
        return Reply(self.line(responses[0]), version=responses[0].version)

    def line(self, result: InferReply) -> bytes:
        """Return a response as JSON, in the format of Triton's generate extension. Each output is a
        value or a flat list, and the keys are sorted."""
        fields: JsonObject = {}
        with reserve_json(result.outputs, self.request.budget):
            for tensor in result.outputs:
                values = json_values(tensor)
                if len(values) == 1:
                    fields[tensor.name] = values[0]
                    continue
                text = io.BytesIO()
                text.write(b"[")
                write_items(text, values)
                text.write(b"]")
                fields[tensor.name] = orjson.Fragment(text.getvalue())
            fields |= {
                "model_name": self.served.public_name,
                "model_version": result.version,
                **result.parameters,
            }
            if self.id:
                fields["id"] = self.id
            return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)


Shape = Instances | TensorBody | FlatBody


def read_object(data: bytes, generates: bool = False, stream: str = "") -> Shape:
    """Parse a JSON object, and return it as the kind of body that it represents: Instances,
    TensorBody or FlatBody. `generates` and `stream` are passed on to a FlatBody. Raise a
    ServingError if the object is invalid or takes too much memory."""
    if tensors := _large_tensors(data):
        return TensorBody(tensors, len(data))
    hint = f"; send JSON of one of the shapes {SHAPES}"
    document = read(JsonObject, data, hint=hint)
    return read_shape(document, len(data), generates, stream)


def read_shape(
    document: JsonObject, length: int, generates: bool = False, stream: str = ""
) -> Shape:
    """Return a parsed object of `length` bytes as the kind of body that it represents. `generates`
    and `stream` are passed on to a FlatBody. Raise a ServingError if the object is invalid or takes
    too much memory."""
    if _are_tensors(document.get("inputs")):
        return TensorBody(_tensors(document), length)
    for key in SHAPE_KEYS:
        if key in document:
            return read_instances(document, key)
    return FlatBody(document, generates, stream, length)


def _are_tensors(inputs: Any) -> bool:
    """Return whether `inputs` is a list of KServe's tensors. An empty list and a list of {} count
    as such, so that their errors mention the fields of a tensor. Any other value is an instance, a
    list of instances, bare tensors, or the value of an input called "inputs" in a flat body."""
    return isinstance(inputs, list) and all(map(_is_tensor, inputs))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and (not value or not TENSOR_KEYS.isdisjoint(value))


def _payload_items(payload: Any, field: str) -> list[Item]:
    """Return the only instance in a payload. The payload is the instance, or {"img": base64}."""
    if isinstance(payload, dict) and "img" in payload:
        picture = read(schemas.Picture, payload, f"the body, {field}")
        return [Item(f"{field}.img", value={"b64": picture.img})]
    return [Item(field, value=payload)]


# Maps each key that contains instances to the shape of the object, and to the function that
# converts the key's value to instances.
INSTANCES: dict[str, tuple[type[schemas.ForClient], Callable[[Any, str], list[Item]]]] = {
    "instances": (schemas.Instances, items_of),
    "payload": (schemas.Payload, _payload_items),
    "dataframe_split": (schemas.DataframeSplit, rows_of),
    "dataframe_records": (schemas.DataframeRecords, items_of),
    "inputs": (schemas.Inputs, items_of),
}
# An object with one of these keys is a whole body rather than a single instance.
WHOLE_BODY_KEYS = INSTANCES.keys()
# If an object contains no tensors, the first of these keys that it has determines its shape. The
# shape does not allow the other keys. What "inputs" means depends on the model (FlatBody).
SHAPE_KEYS = ("instances", "payload", "dataframe_split", "dataframe_records")


def read_instances(document: JsonObject, key: str) -> Instances:
    """Read an object that contains instances under `key`, one of the keys of INSTANCES. Raise a
    ServingError if the object is invalid or takes too much memory."""
    shape, make_items = INSTANCES[key]
    body = read(shape, document)
    items = make_items(getattr(body, key), key)
    as_result = key == "payload"
    return Instances(items, body.parameters or {}, as_result=as_result, named=body.target())


def read_binary(
    header_length: str, source: str, data: bytes, is_kserve: bool = False
) -> TensorBody:
    """Read a body that consists of a JSON header and binary data, or of binary data alone.
    `header_length` is the length of the JSON header as the caller wrote it, and `source` is the
    name of the header or parameter in which it was written. TensorBody explains `is_kserve`. Raise
    a ServingError if the length or the header is invalid, or the header takes too much memory."""
    size = whole_number(header_length)
    if size is None or size > len(data):
        raise InvalidRequest(
            f"{source} must be a whole number from 0 to the body's {len(data)} bytes, the "
            f"length of the JSON before the binary tensors; got '{header_length[:40]}'"
        )
    if not size:
        # if the only input is raw, return all outputs as binary data too
        document = schemas.Tensors(inputs=[], parameters={"binary_data_output": True})
        return RawBody(document, len(data), data, is_kserve)
    document = read_tensors(data[:size], "the JSON header of the body")
    return TensorBody(document, len(data), memoryview(data)[size:], is_kserve)


def read_tensors(data: bytes, subject: str = "the body") -> schemas.Tensors:
    """Parse a JSON object with tensors. Raise a ServingError if the object is invalid or takes too
    much memory. `subject` is the object's name in error messages."""
    tensors = _large_tensors(data)
    if tensors:
        return tensors
    return _tensors(read(JsonObject, data, subject), subject)


def _tensors(document: JsonObject, subject: str = "the body") -> schemas.Tensors:
    check_misspelt(document)
    return read(schemas.Tensors, document, subject)


def _large_tensors(data: bytes) -> schemas.Tensors | None:
    """Parse a large document of tensors with simdjson. Return None for any other document, which
    the caller then parses with msgspec. If it is invalid, msgspec's error says why. Raise
    PayloadTooLarge or Overloaded if a large document takes too much memory, and InvalidRequest if
    it has a misspelt key."""
    if len(data) < LARGE or b'"datatype"' not in data:
        return None
    reserved = admit_json(data, simdjson_memory)
    with turn(len(data)):
        tensors = _parse_with_simdjson(data)
    if tensors is None:
        reserved.shrink()
    return tensors


def _parse_with_simdjson(data: bytes) -> schemas.Tensors | None:
    """Parse a document of tensors. Keep each `data` as an array of simdjson, so that its numbers do
    not become Python objects. Return None for any other document. Raise what `check_misspelt`
    raises."""
    schemas.prepare(schemas.Tensors)
    try:
        document = _members(simdjson.Parser().parse(data), kept="inputs")
        if len(document["inputs"]) > MOST_NAMED:
            return None
        document["inputs"] = [_members(entry, kept="data") for entry in document["inputs"]]
        tensors = msgspec.convert(document, schemas.Tensors)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None
    check_misspelt(document)
    are_arrays = all(isinstance(tensor.data, simdjson.Array) for tensor in tensors.inputs)
    return tensors if are_arrays else None


def _members(value: Any, kept: str) -> JsonObject:
    """Return the members of a simdjson object. All except the one called `kept` become Python
    objects. Raise ValueError if the object has more than MOST_KEYS keys, because simdjson searches
    for each key from the beginning, or if it has a key twice, because simdjson finds only the
    first one."""
    names = list(islice(value, MOST_KEYS))
    # this is true if a key occurs twice, and if there are more keys than were read
    if len(set(names)) < len(value):
        raise ValueError(names)
    members = {name: value[name] for name in names}
    for name in members.keys() - {kept}:
        member = members[name]
        if isinstance(member, simdjson.Object):
            members[name] = member.as_dict()
        elif isinstance(member, simdjson.Array):
            members[name] = member.as_list()
    return members
