"""Tells by its keys which kind of body a JSON object is, and reads the flat JSON of Triton's
generate extension.

{"text_input": "…", "max_tokens": 8}: a key that names no input is a parameter. If the model has a
client, such an object is an instance, {"text": "…"}, or holds instances as Hugging Face's toolkit
takes them: {"inputs": "…"}.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import msgspec
import orjson
import simdjson

from serving.bodies import schemas
from serving.bodies.instances import Instances, Item
from serving.bodies.kserve import TensorBody, check_misspelt, filled
from serving.bodies.schemas import Members, read
from serving.bodies.values import flat_array, json_length, json_values, request_parameters
from serving.budget import MOST_INSTANCES, MOST_NAMED, check_count, check_json
from serving.codecs import ROW
from serving.errors import InvalidRequest, NotAcceptable
from serving.headers import SEQUENCE_END
from serving.model_status.served_model import ServedModel
from serving.named_value import unknown
from serving.request import RESERVED, Batch, Job, Reply, Request, Results, Target
from serving.triton.gateway import TritonGateway
from serving.triton.tensors import InferReply, Tensor, to_raw

# of KServe: an object with none of them is an instance
INPUT_KEYS = {"name", "shape", "datatype", "data"}
LONGEST_NUMBER = 10  # digits of a length
MOST_KEYS = 32  # of a document of tensors, and of a tensor: KServe has 4 and 5
# bytes of JSON: from here on simdjson is faster, which makes no Python object of a number
LARGE = 2 * 1024
NO_FIELDS = {*RESERVED, "parameters"}  # keys that say how to answer an instance beside them
# keys that an object has only if it is one of our shapes
WHOLE_BODY = {"instances", "inputs", "payload"}
SHAPES = (
    '{"instances": […]}, {"inputs": […]} with KServe v2 tensors or instances, an instance '
    'that is an object, or {"modelname": …, "payload": {"img" or "text": …}}'
)


@dataclass(frozen=True)
class FlatBody:
    """A flat object. A stream may always answer it, a reply in one piece only if it `generates`
    (…/generate, or SAGEMAKER_TRITON_INFERENCE_TYPE says so). `stream` is the type of the stream if
    Accept names none."""

    document: dict[str, Any]
    generates: bool = False
    stream: str = ""

    @cached_property
    def flat(self) -> schemas.Flat:
        return read(schemas.Flat, self.document)

    @property
    def named(self) -> Target:
        return self.flat.target()

    def bind(self, served: ServedModel, request: Request) -> Job:
        if self.stream and not request.stream:
            request = replace(request, stream=self.stream)
        if instances := self.instances(served):
            return instances.bind(served, request)
        return FlatJob(served, request, self)

    def instances(self, served: ServedModel) -> Instances | None:
        """Return the object as Instances if the model has a client, else None. It is one instance
        (a table takes any object), or {"inputs": …, "parameters": {…}} as Hugging Face's toolkit
        takes them. An object that names an input of the model is for Triton's generate, and so
        none. Raise InvalidRequest."""
        client = served.client
        by_name = self.generates and any(spec.name in self.document for spec in served.model.inputs)
        if client is None or by_name:
            return None
        parameters = self.flat.parameters or {}
        fields = {key: value for key, value in self.document.items() if key not in NO_FIELDS}
        if "inputs" in fields:  # an instance or a list of them
            values = read(schemas.Inputs, self.document).inputs
            items = _items(values if isinstance(values, list) else [values], "inputs")
            return Instances(items, parameters, named=self.named)
        if client.codec is ROW or not fields.keys().isdisjoint(client.instance_keys()):
            return Instances([Item("body", value=fields)], parameters, named=self.named)
        return None


class FlatJob(Job):
    """One call, answered by any number of responses; a reply in one piece is exactly one of them,
    as Triton's generate has it."""

    def __init__(self, served: ServedModel, request: Request, body: FlatBody) -> None:
        """Raise InvalidRequest."""
        self.document = body.document
        self.parameters, self.id = body.flat.parameters or {}, str(body.flat.id or "")
        super().__init__(served, request, self.document, self.parameters)
        if not (request.stream or body.generates):
            known = {*WHOLE_BODY, *(served.client.instance_keys() if served.client else ())}
            strange = next((key for key in self.document if key not in NO_FIELDS), "")
            text = f": {unknown('key', strange, known)}" if strange else ""
            raise InvalidRequest(f"the body has none of the shapes {SHAPES}{text}")

    def batches(self) -> Iterator[Batch]:
        """Yield one call. Each input is a value or a list and makes one row, as in Triton's
        generate."""
        model, session = self.served.model, self.session
        reserved = RESERVED | {"id", "parameters"} | ({SEQUENCE_END} if session else set())
        fields = {key: value for key, value in self.document.items() if key not in reserved}
        specs = {spec.name: spec for spec in model.inputs}
        if not specs.keys() & fields.keys():
            names = ", ".join(specs)
            raise InvalidRequest(
                f"none of {sorted(islice(fields, 8))} is an input of model '{model.name}': {names}"
            )
        inputs, parameters = [], {}
        for key, value in fields.items():
            if (spec := specs.get(key)) is None:
                parameters[key] = value
                continue
            flat = flat_array(key, spec.datatype, value)
            # the declared shape, else a flat list
            shape = filled(spec.shape, flat.size) or (flat.size,)
            rows = (1, *shape) if model.max_batch_size else shape
            inputs.append(Tensor(key, spec.datatype, rows, to_raw(flat, spec.datatype)))
        checked = request_parameters(parameters | self.parameters, self.served.sequencing)
        flags = session.parameters() if session else {}
        yield Batch(inputs, parameters={**checked, **flags})

    def results(self, gateway: TritonGateway) -> Results:
        return self.responses(gateway)

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
        """Return the reply as Triton's generate writes it: a value or a flat list for each output,
        with sorted keys."""
        self.request.budget.check_output(sum(map(json_length, result.outputs)))
        fields: dict[str, Any] = {}
        for tensor in result.outputs:
            values = json_values(tensor)
            fields[tensor.name] = values[0] if len(values) == 1 else values
        fields |= {
            "model_name": self.served.name,
            "model_version": result.version,
            **result.parameters,
        }
        fields |= {"id": self.id} if self.id else {}
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)


Shape = Instances | TensorBody | FlatBody


def read_object(data: bytes, generates: bool = False, stream: str = "") -> Shape:
    """Return the body that a JSON object is; `generates` and `stream` are those of a FlatBody.
    Raise InvalidRequest or PayloadTooLarge."""
    if tensors := _large_tensors(data):
        return TensorBody(tensors, memoryview(b""), len(data))
    return read_shape(
        data,
        read(Members, data, hint=f"; send JSON of one of the shapes {SHAPES}"),
        generates,
        stream,
    )


def read_shape(data: bytes, keys: Members, generates: bool = False, stream: str = "") -> Shape:
    """Return the body that an object with these members is. Raise InvalidRequest."""
    if _are_tensors(keys):
        return TensorBody(_small_tensors(data, keys), memoryview(b""), len(data))
    return _instances(data, keys) or FlatBody(read(dict[str, Any], data), generates, stream)


def instances_in(
    data: bytes, keys: Members, served: ServedModel, generates: bool
) -> Instances | None:
    """Return the instances that an object holds for this model, None if it holds none. Raise
    InvalidRequest."""
    if _are_tensors(keys):
        return None
    return _instances(data, keys) or FlatBody(read(dict[str, Any], data), generates).instances(
        served
    )


def _are_tensors(keys: Members) -> bool:
    """Return whether `inputs` is a list of KServe's tensors, which may be empty. Any other `inputs`
    is an instance or a list of them, or an input of that name of a flat body."""
    try:
        entries = msgspec.json.decode(keys.get("inputs", b"0"), type=list[Members])
    except (ValueError, RecursionError):
        return False
    return all(not entry or not INPUT_KEYS.isdisjoint(entry) for entry in entries)


def _instances(data: bytes, keys: Members) -> Instances | None:
    """Return the instances of a body with `instances` or `payload`; both at once are an unknown
    key."""
    if "instances" in keys:
        body = read(schemas.Instances, data)
        return Instances(
            _items(body.instances, "instances"), body.parameters or {}, named=body.target()
        )
    if "payload" not in keys:
        return None
    sample = read(schemas.Payload, data)
    payload, item = sample.payload, Item("payload", value=sample.payload)
    if isinstance(payload, dict) and "img" in payload:
        item = Item(
            "payload.img", value={"b64": read(schemas.Picture, payload, "the body, payload").img}
        )
    return Instances([item], sample.parameters or {}, sample_shape=True, named=sample.target())


def _items(values: list[Any], field: str) -> list[Item]:
    """Return an item for each instance. Raise PayloadTooLarge."""
    check_count(len(values), MOST_INSTANCES, "instances", "send fewer at a time, or JSON lines")
    return [Item(field, value=value) for value in values]


def read_binary(
    header_length: str, source: str, data: bytes, is_kserve: bool = False
) -> TensorBody:
    """Return a body of a JSON header and binary data, or of raw input. Raise InvalidRequest."""
    digits = (
        header_length.isascii() and header_length.isdigit() and len(header_length) <= LONGEST_NUMBER
    )
    if not digits or int(header_length) > len(data):
        raise InvalidRequest(
            f"{source} must be a whole number from 0 to the body's {len(data)} bytes, the "
            f"length of the JSON before the binary tensors; got '{header_length[:40]}'"
        )
    size, whole = int(header_length), memoryview(data)
    header = read_tensors(data[:size], "the JSON header of the body") if size else None
    return TensorBody(header, whole[size:], len(data), is_kserve)


def read_tensors(data: bytes, subject: str = "the body") -> schemas.Tensors:
    """Return a JSON object of tensors. Raise InvalidRequest or PayloadTooLarge."""
    return _large_tensors(data) or _small_tensors(data, read(Members, data, subject), subject)


def _small_tensors(data: bytes, keys: Members, subject: str = "the body") -> schemas.Tensors:
    check_misspelt(keys)
    return read(schemas.Tensors, data, subject)


def _large_tensors(data: bytes) -> schemas.Tensors | None:
    """Return a large document of tensors, with `data` as simdjson's arrays: their numbers do not
    become Python objects. Return None for anything else: then msgspec reads it, or says what is
    wrong."""
    if len(data) < LARGE or b'"datatype"' not in data:
        return None
    check_json(data)
    try:
        document = _members(simdjson.Parser().parse(data))
        if len(entries := document.pop("inputs")) > MOST_NAMED:
            return None
        inputs = [_members(entry) for entry in entries]
        arrays = [entry.pop("data") for entry in inputs]
        plain = _plain(document) | {"inputs": list(map(_plain, inputs))}
        tensors = msgspec.convert(plain, schemas.Tensors)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None
    check_misspelt(plain)
    for tensor, array in zip(tensors.inputs, arrays, strict=True):
        tensor.data = array
    return tensors if all(isinstance(array, simdjson.Array) for array in arrays) else None


def _members(value: Any) -> dict[str, Any]:
    """Return an object's members. Raise ValueError if it has more than MOST_KEYS keys, or one of
    them twice: simdjson searches for each key from the start and finds the first."""
    names = list(islice(value, MOST_KEYS + 1))
    if len(set(names)) < len(value):
        raise ValueError(names)
    return {name: value[name] for name in names}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return members as Python objects."""
    kinds: dict[type, Any] = {
        simdjson.Object: simdjson.Object.as_dict,
        simdjson.Array: simdjson.Array.as_list,
    }
    return {
        key: kinds[type(value)](value) if type(value) in kinds else value
        for key, value in values.items()
    }
