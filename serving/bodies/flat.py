"""The flat JSON of Triton's generate extension: inputs by their names; every other key is a parameter.

{"text_input": "…", "max_tokens": 8}

The model decides what a flat object is: if the model has a client, the object is an instance, {"text": "…"}, or holds
instances as Hugging Face's toolkit takes them, {"inputs": "…"}.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

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
from serving.decoding import Decoder, Item
from serving.errors import InvalidRequest
from serving.request import RESERVED, Batch, Body, Reply, Request, ServedModel, Target
from serving.sessions import SEQUENCE_END, Session
from serving.triton.tensors import InferReply, Tensor, to_raw

SHAPES = (
    '{"instances": […]}, {"inputs": […]} with KServe v2 tensors or instances, an instance that is an object, or '
    '{"modelname": …, "payload": {"img" or "text": …}}'
)


@dataclass(frozen=True)
class FlatBody(Body):
    """A flat object. `generates` says whether it may be answered in one piece (SAGEMAKER_TRITON_INFERENCE_TYPE,
    …/generate), not only by a stream."""

    document: Mapping[str, Any]
    generates: bool = False

    single_stream: ClassVar[bool] = True

    def target(self) -> Target:
        return Target.within("the body", self.document)

    def flags(self) -> Sequence[Mapping[str, Any]]:
        return [self.document, an_object(self.document, "parameters")]

    def meant_for(self, served: ServedModel) -> Body:
        """Return Instances if the model has a client and the object is an instance, as any is for a table, or holds
        some as Hugging Face's toolkit takes them: {"inputs": …, "parameters": {…}}. Otherwise return this body."""
        client = served.client
        by_name = self.generates and any(spec.name in self.document for spec in served.model.inputs)
        if client is None or by_name:
            return self
        parameters = an_object(self.document, "parameters")
        given = {key: value for key, value in self.document.items() if key not in {*RESERVED, "parameters"}}
        if "inputs" in given:
            return Instances(_items(given), parameters, named=self.target())
        if client.codec is ROW or set(client.keys or client.codec.keys or ()) & given.keys():
            return Instances([Item("body", value=given)], parameters, named=self.target())
        return self

    def check_single(self) -> None:
        if not self.generates:
            objects(self.document, "inputs")
            raise InvalidRequest(f"the body has none of the shapes {SHAPES}")

    def batches(
        self, served: ServedModel, request: Request, session: Session | None, decoder: Decoder
    ) -> Iterator[Batch]:
        """Yield one call. Each input is a value or a list and makes one row, as in Triton's generate."""
        _request_id(self.document)
        reserved = RESERVED | {"id", "parameters"} | ({SEQUENCE_END} if session else set())
        given = {key: value for key, value in self.document.items() if key not in reserved}
        specs = {spec.name: spec for spec in served.model.inputs}
        if not specs.keys() & given.keys():
            known = ", ".join(specs)
            raise InvalidRequest(f"none of {sorted(islice(given, 8))} is an input of model '{served.name}': {known}")
        batched = served.model.max_batch_size > 0
        inputs = [_tensor(specs[key], value, batched, request.deadline) for key, value in given.items() if key in specs]
        rest = {key: value for key, value in given.items() if key not in specs}
        parameters = request_parameters(rest | an_object(self.document, "parameters"))
        flags = session.parameters() if session else {}
        yield Batch(inputs, parameters={**parameters, **flags})

    def reply(self, served: ServedModel, request: Request, results: Iterator[InferReply]) -> Reply:
        (result,) = results
        return Reply(self.line(served, request, result), version=result.version)

    def line(self, served: ServedModel, request: Request, result: InferReply) -> bytes:
        """Return the reply as Triton's generate writes it: a value or a flat list for each output, with sorted keys."""
        request.budget.check_output(sum(map(json_length, result.outputs)))
        fields = {tensor.name: _value(tensor) for tensor in result.outputs}
        fields |= {"model_name": served.name, "model_version": result.version, **result.parameters}
        fields |= {"id": own_id} if (own_id := _request_id(self.document)) else {}
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
