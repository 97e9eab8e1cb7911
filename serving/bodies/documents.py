"""JSON objects: which kind of body an object is, by its keys; and the flat JSON of Triton's generate extension.

{"text_input": "…", "max_tokens": 8}: inputs by their names; every other key is a parameter. If the model has a client,
such an object is an instance, {"text": "…"}, or holds instances as Hugging Face's toolkit takes them: {"inputs": "…"}.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson
import simdjson

from serving.bodies.instances import Instances, Item, listed_items
from serving.bodies.kserve import TensorBody, filled, request_id
from serving.bodies.values import (
    an_object,
    check_keys,
    flat_array,
    json_length,
    json_values,
    objects,
    request_parameters,
)
from serving.budget import check_json, read_json
from serving.codecs import ROW, describe
from serving.errors import InvalidRequest, NotAcceptable
from serving.headers import SEQUENCE_END
from serving.model_status.served_model import ServedModel
from serving.request import RESERVED, Batch, Job, Reply, Request, Results, Target
from serving.triton.gateway import TritonGateway
from serving.triton.tensors import InferReply, Tensor, to_raw

INPUT_KEYS = {"name", "shape", "datatype", "data"}  # of KServe: an object with none of them is an instance
LONGEST_NUMBER = 10  # digits of a length
MOST_KEYS = 32  # of a document of tensors, and of a tensor: KServe has 4 and 5
LARGE = 16 * 1024  # bytes of JSON, from which making no object of a number saves more than it costs
SHAPES = (
    '{"instances": […]}, {"inputs": […]} with KServe v2 tensors or instances, an instance that is an object, or '
    '{"modelname": …, "payload": {"img" or "text": …}}'
)


@dataclass(frozen=True)
class FlatBody:
    """A flat object. `generates` says whether it may be answered in one piece (SAGEMAKER_TRITON_INFERENCE_TYPE,
    …/generate), not only by a stream; `stream` is the type of the stream that answers it if Accept says nothing."""

    document: Mapping[str, Any]
    generates: bool = False
    stream: str = ""

    @property
    def named(self) -> Target:
        return Target.within("the body", self.document)

    def bind(self, served: ServedModel, request: Request) -> Job:
        request = request.streamed_as(request.stream or self.stream)
        if instances := self.instances(served):
            return instances.bind(served, request)
        return FlatJob(served, request, self)

    def instances(self, served: ServedModel) -> Instances | None:
        """Return Instances if the model has a client and the object is an instance, as any is for a table, or holds
        some as Hugging Face's toolkit takes them: {"inputs": …, "parameters": {…}}. Raise InvalidRequest."""
        client = served.client
        by_name = self.generates and any(spec.name in self.document for spec in served.model.inputs)
        if client is None or by_name:
            return None
        parameters = an_object(self.document, "parameters")
        fields = {key: value for key, value in self.document.items() if key not in {*RESERVED, "parameters"}}
        if "inputs" in fields:  # an instance or a list of them
            check_keys(
                fields, ("inputs", "parameters"), "the body with 'inputs' (a model's parameters stand in 'parameters')"
            )
            values = fields["inputs"]
            items = listed_items(values if isinstance(values, list) else [values], "inputs")
            return Instances(items, parameters, named=self.named)
        if client.codec is ROW or set(client.keys or client.codec.keys or ()) & fields.keys():
            return Instances([Item("body", value=fields)], parameters, named=self.named)
        return None


class FlatJob(Job):
    """One call, answered by any number of responses; a reply in one piece is exactly one of them, as Triton's generate
    has it."""

    def __init__(self, served: ServedModel, request: Request, body: FlatBody) -> None:
        """Raise InvalidRequest."""
        self.document = body.document
        self.parameters = an_object(self.document, "parameters")
        super().__init__(served, request, self.document, self.parameters)
        if not (request.stream or body.generates):
            objects(self.document, "inputs")
            raise InvalidRequest(f"the body has none of the shapes {SHAPES}")
        own_id = self.document.get("id") or ""  # the caller's, which the reply repeats as a string
        self.id = str(own_id) if type(own_id) is int else request_id({"id": own_id})

    def batches(self) -> Iterator[Batch]:
        """Yield one call. Each input is a value or a list and makes one row, as in Triton's generate."""
        model, session = self.served.model, self.session
        reserved = RESERVED | {"id", "parameters"} | ({SEQUENCE_END} if session else set())
        fields = {key: value for key, value in self.document.items() if key not in reserved}
        specs = {spec.name: spec for spec in model.inputs}
        if not specs.keys() & fields.keys():
            known = ", ".join(specs)
            raise InvalidRequest(f"none of {sorted(islice(fields, 8))} is an input of model '{model.name}': {known}")
        inputs, parameters = [], {}
        for key, value in fields.items():
            if (spec := specs.get(key)) is None:
                parameters[key] = value
                continue
            flat = flat_array(key, spec.datatype, value, self.request.deadline)
            shape = filled(spec.shape, flat.size) or (flat.size,)  # the declared shape, else a flat list
            rows = (1, *shape) if model.max_batch_size else shape
            inputs.append(Tensor(key, spec.datatype, rows, to_raw(flat, spec.datatype)))
        flags = session.parameters() if session else {}
        yield Batch(inputs, parameters={**request_parameters(parameters | self.parameters), **flags})

    def results(self, gateway: TritonGateway) -> Results:
        return self.responses(gateway)

    def reply(self, results: Iterator[InferReply]) -> Reply:
        responses = list(islice(results, 2))
        if len(responses) != 1:
            raise NotAcceptable(
                f"model '{self.served.name}' gave none or several responses, and generate is for exactly one: "
                "ask for them with Accept: text/event-stream or Accept: application/jsonlines"
            )
        return Reply(self.line(responses[0]), version=responses[0].version)

    def line(self, result: InferReply) -> bytes:
        """Return the reply as Triton's generate writes it: a value or a flat list for each output, with sorted keys."""
        self.request.budget.check_output(sum(map(json_length, result.outputs)))
        fields: dict[str, Any] = {}
        for tensor in result.outputs:
            values = json_values(tensor)
            fields[tensor.name] = values[0] if len(values) == 1 else values
        fields |= {"model_name": self.served.name, "model_version": result.version, **result.parameters}
        fields |= {"id": self.id} if self.id else {}
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)


Shape = Instances | TensorBody | FlatBody


def read_object(data: bytes, generates: bool = False, stream: str = "") -> Shape:
    """Return the body that a JSON object is. Raise InvalidRequest or PayloadTooLarge."""
    document = _parse_tensors(data) or parse_object(data, "the body", f" ({SHAPES})")
    return read_document(document, len(data), generates, stream)


def read_document(document: Mapping[str, Any], length: int, generates: bool = False, stream: str = "") -> Shape:
    """Return the body that an object of `length` bytes is; `generates` and `stream` are those of a FlatBody. Raise
    InvalidRequest."""
    if _are_tensors(document.get("inputs")):
        return TensorBody(document, memoryview(b""), length)
    if "instances" in document or "payload" in document:
        return _instances(document)
    return FlatBody(document, generates, stream)


def instances_in(document: Mapping[str, Any], served: ServedModel, generates: bool) -> Instances | None:
    """Return the instances that an object holds for this model, None if it holds none. Raise InvalidRequest."""
    if _are_tensors(document.get("inputs")):
        return None
    if "instances" in document or "payload" in document:
        return _instances(document)
    return FlatBody(document, generates).instances(served)


def _are_tensors(inputs: Any) -> bool:
    """Return whether `inputs` are KServe's. Others are an input of that name, or instances, of a flat body."""
    return isinstance(inputs, list) and all(
        isinstance(entry, dict) and not (entry and INPUT_KEYS.isdisjoint(entry)) for entry in inputs
    )


def _instances(document: Mapping[str, Any]) -> Instances:
    """Return the instances of a body with `instances` or `payload`; both at once are an unknown key."""
    shape = "instances" if "instances" in document else "payload"
    known = (shape, "parameters", *RESERVED)
    check_keys(document, known, f"the body with '{shape}' (a model's parameters stand in 'parameters')")
    parameters = an_object(document, "parameters")
    named = Target.within("the body", document)
    if shape == "instances":
        return Instances(listed_items(document["instances"], shape), parameters, named=named)
    payload, item = document["payload"], Item("payload", value=document["payload"])
    if isinstance(payload, dict) and "img" in payload:
        check_keys(payload, ("img",), "'payload'")
        item = Item("payload.img", value={"b64": payload["img"]})
    return Instances([item], parameters, sample_shape=True, named=named)


def parse_object(data: bytes, what: str, shapes: str = "") -> dict[str, Any]:
    """Return the JSON object that these bytes hold. Raise InvalidRequest or PayloadTooLarge."""
    try:
        document = read_json(data)
    except orjson.JSONDecodeError as err:
        raise InvalidRequest(f"{what} is not valid JSON: {err}") from err
    if not isinstance(document, dict):
        raise InvalidRequest(f"{what} must be a JSON object{shapes}, got {describe(document)}")
    return document


def read_binary(header_length: str, source: str, data: bytes, is_kserve: bool = False) -> TensorBody:
    """Return a body of a JSON header and binary data, or of raw input. Raise InvalidRequest."""
    digits = header_length.isascii() and header_length.isdigit() and len(header_length) <= LONGEST_NUMBER
    if not digits or int(header_length) > len(data):
        raise InvalidRequest(
            f"{source} must be a whole number from 0 to the body's {len(data)} bytes, the length of the JSON before "
            f"the binary tensors; got '{header_length[:40]}'"
        )
    size, whole = int(header_length), memoryview(data)
    document = parse_object(data[:size], "the JSON header of the body") if size else None
    return TensorBody(document, whole[size:], len(data), is_kserve)


def _parse_tensors(data: bytes) -> dict[str, Any] | None:
    """Return a large document of KServe tensors, with `data` as simdjson's arrays: their numbers do not become Python
    objects. Return None for anything else: then orjson reads it, or says what is wrong.
    """
    if len(data) < LARGE or b'"datatype"' not in data:
        return None
    check_json(data)
    try:
        document = _members(simdjson.Parser().parse(data))
        inputs = [_members(entry) for entry in document.pop("inputs")]
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        return None
    return {key: _plain(value) for key, value in document.items()} | {"inputs": list(map(_read_input, inputs))}


def _members(value: Any) -> dict[str, Any]:
    """Return an object's members. Raise ValueError if they are many or a key is there twice: simdjson searches for each
    key from the start and finds the first."""
    names = list(islice(value, MOST_KEYS + 1))
    if len(set(names)) < len(value):
        raise ValueError(names)
    return {name: value[name] for name in names}


def _read_input(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an input as orjson reads it, but with an array of data unchanged."""
    is_array = isinstance(entry.get("data"), simdjson.Array)
    return {key: value if key == "data" and is_array else _plain(value) for key, value in entry.items()}


def _plain(value: Any) -> Any:
    """Return a value as orjson reads it."""
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value
