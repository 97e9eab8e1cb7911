"""The flat JSON of Triton's generate extension: inputs by their names; every other key is a parameter.

{"text_input": "…", "max_tokens": 8}

The model decides what a flat object is: if the model has a client, the object is an instance, {"text": "…"}, or holds
instances as Hugging Face's toolkit takes them, {"inputs": "…"}.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from clients.base import TensorSpec
from serving.bodies.instances import Instances, listed_items
from serving.bodies.kserve import filled, request_id
from serving.bodies.values import (
    an_object,
    check_keys,
    flat_array,
    json_length,
    json_values,
    objects,
    request_parameters,
)
from serving.budget import Deadline
from serving.codecs import ROW
from serving.decoding import Item
from serving.errors import InvalidRequest, NotAcceptable
from serving.model_status.served_model import ServedModel
from serving.request import RESERVED, Batch, Job, Reply, Request, Results, Target
from serving.sessions import SEQUENCE_END
from serving.triton.gateway import TritonGateway
from serving.triton.tensors import InferReply, Tensor, to_raw

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
        if "inputs" in fields:
            return Instances(_items(fields), parameters, named=self.named)
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
        self.id = _request_id(self.document)

    def batches(self) -> Iterator[Batch]:
        """Yield one call. Each input is a value or a list and makes one row, as in Triton's generate."""
        model, session = self.served.model, self.session
        reserved = RESERVED | {"id", "parameters"} | ({SEQUENCE_END} if session else set())
        fields = {key: value for key, value in self.document.items() if key not in reserved}
        specs = {spec.name: spec for spec in model.inputs}
        if not specs.keys() & fields.keys():
            known = ", ".join(specs)
            raise InvalidRequest(f"none of {sorted(islice(fields, 8))} is an input of model '{model.name}': {known}")
        batched, deadline = model.max_batch_size > 0, self.request.deadline
        inputs = [_tensor(specs[key], value, batched, deadline) for key, value in fields.items() if key in specs]
        rest = {key: value for key, value in fields.items() if key not in specs}
        flags = session.parameters() if session else {}
        yield Batch(inputs, parameters={**request_parameters(rest | self.parameters), **flags})

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
        fields = {tensor.name: _value(tensor) for tensor in result.outputs}
        fields |= {"model_name": self.served.name, "model_version": result.version, **result.parameters}
        fields |= {"id": self.id} if self.id else {}
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)


def _request_id(document: Mapping[str, Any]) -> str:
    """Return the caller's `id`, which the reply repeats as a string, "" without one. Raise InvalidRequest."""
    given = document.get("id") or ""
    return str(given) if type(given) is int else request_id({"id": given})


def _items(given: Mapping[str, Any]) -> list[Item]:
    """Return an item for each instance in `inputs`, which is an instance or a list of them."""
    known = ("inputs", "parameters", *RESERVED)
    check_keys(given, known, "the body with 'inputs' (a model's parameters stand in 'parameters')")
    values = given["inputs"]
    return listed_items(values if isinstance(values, list) else [values], "inputs")


def _tensor(spec: TensorSpec, value: Any, batched: bool, deadline: Deadline) -> Tensor:
    """Return an input in its declared shape if the value has as many elements, else as a flat list."""
    flat = flat_array(spec.name, spec.datatype, value, deadline)
    shape = filled(spec.shape, flat.size) or (flat.size,)
    return Tensor(spec.name, spec.datatype, (1, *shape) if batched else shape, to_raw(flat, spec.datatype))


def _value(tensor: Tensor) -> Any:
    values = json_values(tensor)
    return values[0] if len(values) == 1 else values
