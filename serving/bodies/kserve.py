"""KServe v2 tensors, as JSON or with binary data behind a JSON header.

    {"inputs": [{"name", "shape", "datatype", "data"}], "outputs": [{"name"}],
     "parameters": {…}, "id": "…"}
    {"inputs": [{"name", "shape", "datatype", "parameters": {"binary_data_size": N}}]}BYTES…

A header of 0 bytes means raw input: the whole body is the data of the model's only input.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import orjson
from msgspec import UNSET

from serving.bodies import schemas
from serving.bodies.values import (
    DATATYPES,
    SIZES,
    check_shape,
    flat_array,
    json_length,
    json_values,
    request_parameters,
)
from serving.budget import MOST_NAMED, MOST_STRINGS, Budget, check_count, in_time
from serving.errors import InvalidRequest
from serving.headers import SEQUENCE_END
from serving.model_status.served_model import ServedModel
from serving.named_value import nearest, unknown
from serving.request import UNNAMED, Batch, Job, Reply, Request, Target
from serving.triton.tensors import InferReply, Tensor, to_raw

BINARY_TYPE = "application/vnd.sagemaker-triton.binary+json"
# as for Triton
SCORES = {"FP32", "FP64", *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))}
LONGEST_KEY, MOST_OTHERS = 40, 100  # characters, keys: difflib compares each with every field
# KServe's own way to say how long the JSON header is
HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class TensorBody:
    """A request of tensors. `document` is its JSON, None for raw input; `binary` are the bytes
    behind the JSON; `length` is that of the whole body.

    `is_kserve` says that the request came by KServe's own route, whose replies give the length of
    their JSON in the header HEADER_LENGTH.
    """

    document: schemas.Tensors | None
    binary: memoryview
    length: int
    is_kserve: bool = False

    @property
    def named(self) -> Target:
        return self.document.target() if self.document else UNNAMED

    def bind(self, served: ServedModel, request: Request) -> Job:
        if self.document is None:
            return RawJob(
                served,
                request,
                schemas.Tensors(inputs=[], parameters={"binary_data_output": True}),
                self,
            )
        return TensorJob(served, request, self.document, self)


class TensorJob(Job):
    """One call with tensors. `document` is the body's JSON."""

    def __init__(
        self, served: ServedModel, request: Request, document: schemas.Tensors, body: TensorBody
    ) -> None:
        """Raise InvalidRequest or PayloadTooLarge."""
        ends, self.parameters = document.sequence_end, document.parameters or {}
        super().__init__(
            served, request, {} if ends is UNSET else {SEQUENCE_END: ends}, self.parameters
        )
        self.document, self.body = document, body
        # how many classes are wanted of each, 0 for the output itself
        self.outputs: dict[str, int] = {}
        for output in document.outputs:
            count = (output.parameters.classification or 0) if output.parameters else 0
            self.outputs.setdefault(output.name, count)
        self.classes = {name: count for name, count in self.outputs.items() if count}
        for spec in served.model.outputs:
            if spec.name in self.classes and spec.datatype not in SCORES:
                kinds = ", ".join(sorted(SCORES))
                problem = f"output '{spec.name}' is {spec.datatype}, which has no classes"
                raise InvalidRequest(f"{problem}: classification takes {kinds}")

    def batches(self) -> Iterator[Batch]:
        forwarded = {
            name: value for name, value in self.parameters.items() if name != "binary_data_output"
        }
        parameters = {
            **request_parameters(forwarded, self.served.sequencing),
            **(self.session.parameters() if self.session else {}),
        }
        inputs = read_inputs(self.document, self.body.binary, self.body.length)
        model = self.served.model
        batch = [-1] if model.max_batch_size else []
        shapes = {spec.name: [*batch, *spec.shape] for spec in model.inputs}
        if shapes and not inputs:
            takes = ", ".join(
                f"{spec.name} {spec.datatype} {shapes[spec.name]}" for spec in model.inputs
            )
            raise InvalidRequest(f"'inputs' is empty; model '{model.name}' takes {takes}")
        for tensor in inputs:
            expected = shapes.get(tensor.name, tensor.shape)
            if len(tensor.shape) != len(expected):
                raise InvalidRequest(
                    f"input '{tensor.name}': its shape is {list(tensor.shape)}, expected {expected}"
                )
        yield Batch(inputs, parameters=parameters, outputs=tuple(self.outputs))

    def reply(self, results: Iterator[InferReply]) -> Reply:
        (result,) = map(self._with_classes, results)
        binary = self._binary(result)
        header = write_reply(self.served, result, self.request.budget, self.document.id, binary)
        if not binary:
            return Reply(header, version=result.version)
        content = b"".join(
            [header, *(tensor.data for tensor in result.outputs if tensor.name in binary)]
        )
        if self.body.is_kserve:
            return Reply(
                content,
                "application/octet-stream",
                result.version,
                {HEADER_LENGTH: str(len(header))},
            )
        return Reply(content, f"{BINARY_TYPE};json-header-size={len(header)}", result.version)

    def line(self, result: InferReply) -> bytes:
        return write_reply(
            self.served, self._with_classes(result), self.request.budget, self.document.id
        )

    def _with_classes(self, result: InferReply) -> InferReply:
        """Return the result with classes in place of these outputs. Raise InvalidRequest,
        PayloadTooLarge."""
        if not self.classes:
            return result
        is_batched, labels, budget = (
            self.served.model.max_batch_size > 0,
            self.served.labels,
            self.request.budget,
        )
        outputs = (
            classified(
                tensor, self.classes[tensor.name], is_batched, labels.get(tensor.name, ()), budget
            )
            if tensor.name in self.classes
            else tensor
            for tensor in result.outputs
        )
        return replace(result, outputs=tuple(outputs))

    def _binary(self, result: InferReply) -> set[str]:
        """Return the names of the outputs whose data are binary in the reply. If the request names
        an output twice, the first entry counts."""
        default = bool(self.parameters.get("binary_data_output", False))
        entries = reversed(self.document.outputs)
        flags = {entry.name: entry.parameters.binary_data for entry in entries if entry.parameters}
        is_binary = {name: default if binary is UNSET else binary for name, binary in flags.items()}
        return {tensor.name for tensor in result.outputs if is_binary.get(tensor.name, default)}


class RawJob(TensorJob):
    """One call whose only input is the whole body; all outputs of the reply are binary."""

    def batches(self) -> Iterator[Batch]:
        if self.request.stream:
            raise InvalidRequest(
                "raw binary input (json-header-size=0) cannot be streamed; send the JSON header too"
            )
        if self.session:
            raise InvalidRequest(
                "raw binary input (json-header-size=0) cannot be part of a session: send its JSON"
            )
        yield Batch([raw_input(self.served, self.body.binary)])


def read_inputs(document: schemas.Tensors, binary: memoryview, length: int) -> list[Tensor]:
    """Return the tensors of a body of `length` bytes; `binary` are the bytes behind its JSON. Raise
    InvalidRequest and others."""
    inputs = []
    for entry in in_time(document.inputs):
        name, datatype, available = entry.name, entry.datatype, len(binary)
        if datatype not in DATATYPES:
            raise InvalidRequest(f"input '{name}': {unknown('datatype', datatype, DATATYPES)}")
        size = entry.parameters.binary_data_size if entry.parameters else None
        if size is not None and size > available:
            raise InvalidRequest(
                f"input '{name}': binary_data_size is {size}, {available} bytes are left"
            )
        shape = check_shape(name, entry.shape, length)
        count = math.prod(shape)
        if size is None:
            if entry.data is UNSET:
                raise InvalidRequest(
                    f"input '{name}': it has no data, and no binary_data_size in its parameters"
                )
            flat = flat_array(name, datatype, entry.data)
            if flat.size != count:
                raise InvalidRequest(
                    f"input '{name}': its shape {list(shape)} does not fit the {flat.size} "
                    "values in its data"
                )
            inputs.append(Tensor(name, datatype, shape, to_raw(flat, datatype)))
            continue
        if entry.data is not UNSET:
            raise InvalidRequest(
                f"input '{name}': it has both data and binary_data_size; send one of them"
            )
        if datatype == "BYTES":  # Triton counts the strings itself
            check_count(count, MOST_STRINGS, "strings")
        elif count * SIZES[datatype] != size:
            raise InvalidRequest(
                f"input '{name}': {size} bytes of binary data do not fill its shape "
                f"{list(shape)} of {datatype}"
            )
        inputs.append(Tensor(name, datatype, shape, binary[:size]))
        binary = binary[size:]
    if len(binary):
        raise InvalidRequest(
            f"{len(binary)} bytes of the body belong to no input (binary_data_size)"
        )
    return inputs


def write_reply(
    served: ServedModel,
    reply: InferReply,
    budget: Budget,
    own_id: str = "",
    binary: Collection[str] = (),
) -> bytes:
    """Return the JSON of a KServe v2 reply. Outputs in `binary` have the size of their data in
    place of the data. Raise PayloadTooLarge before anything is written."""
    budget.check_output(
        sum(json_length(tensor) for tensor in reply.outputs if tensor.name not in binary)
    )
    outputs: list[dict[str, Any]] = []
    for tensor in reply.outputs:
        is_binary = tensor.name in binary
        data = (
            {"parameters": {"binary_data_size": len(tensor.data)}}
            if is_binary
            else {"data": json_values(tensor)}
        )
        outputs.append(
            {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, **data}
        )
    document: dict[str, Any] = {"id": own_id} if own_id else {}
    document |= {"model_name": served.name, "model_version": reply.version}
    document |= {"parameters": dict(reply.parameters)} if reply.parameters else {}
    return orjson.dumps({**document, "outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY)


def raw_input(served: ServedModel, data: memoryview) -> Tensor:
    """Return the model's only input, made of the whole body as Triton does it (infer_request.cc): a
    dimension of -1 is computed from the others, and a string input is one string. Raise
    InvalidRequest."""
    model = served.model
    if len(model.inputs) != 1:
        raise InvalidRequest(
            f"raw binary input is one tensor, and model '{model.name}' has "
            f"{len(model.inputs)} inputs"
        )
    spec, batch = model.inputs[0], (1,) if model.max_batch_size else ()
    if spec.datatype == "BYTES":
        if any(size not in (1, -1) for size in spec.shape):
            raise InvalidRequest(
                f"raw input '{spec.name}': the model takes {list(spec.shape)} strings, and "
                "this is one"
            )
        return Tensor(
            spec.name,
            "BYTES",
            (*batch, *(1 for _ in spec.shape)),
            len(data).to_bytes(4, "little") + data,
        )
    shape = filled(spec.shape, len(data) // SIZES[spec.datatype])
    if shape is None or math.prod(shape) * SIZES[spec.datatype] != len(data):
        raise InvalidRequest(
            f"raw input '{spec.name}': {len(data)} bytes do not fill {list(spec.shape)} of "
            f"{spec.datatype}"
        )
    return Tensor(spec.name, spec.datatype, (*batch, *shape), data)


def filled(shape: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Return the shape with its only -1 replaced so that it has `count` elements, None if that is
    impossible."""
    fixed = math.prod(size for size in shape if size != -1)
    if list(shape).count(-1) > 1 or not fixed or count % fixed:
        return None
    full = tuple(count // fixed if size == -1 else size for size in shape)
    return full if math.prod(full) == count else None


def check_misspelt(keys: Collection[str]) -> None:
    """Raise InvalidRequest for a key that is nearly one of a body of tensors; Triton ignores any
    other. Of very many other keys the first ones are looked at."""
    check_count(len(keys), MOST_NAMED, "keys")
    fields = schemas.Tensors.__struct_fields__
    others = islice((key[:LONGEST_KEY] for key in keys if key not in fields), MOST_OTHERS)
    if misspelt := next((key for key in others if nearest(key, fields)), ""):
        raise InvalidRequest(f"the body with 'inputs': {unknown('key', misspelt, fields)}")


def classified(
    tensor: Tensor, count: int, is_batched: bool, labels: Sequence[bytes], budget: Budget
) -> Tensor:
    """Return [rows, classes] of strings, or [classes] of a model without a batch dimension; the
    highest score first, of equal ones the lowest index."""
    shape = tensor.shape if is_batched else (1, *tensor.shape)
    width = math.prod(shape[1:])
    count = min(count, width)
    check_count(
        shape[0] * count, MOST_STRINGS, f"classes of output '{tensor.name}'", "ask for fewer"
    )
    scores = tensor.array().reshape(shape[0], width)
    order = width - 1 - np.argsort(scores[:, ::-1], axis=1, kind="stable")[:, ::-1][:, :count]
    classes = np.empty(order.shape, np.object_)
    form, length = ("%f" if scores.dtype.kind == "f" else "%d"), 0
    for row, indices in enumerate(order):
        for at, (index, score) in enumerate(
            zip(indices.tolist(), scores[row, indices].tolist(), strict=True)
        ):
            label = labels[index] if index < len(labels) else b""
            classes[row, at] = f"{form % score}:{index}".encode() + (b":" + label if label else b"")
            length += len(classes[row, at])
        budget.check_output(length)
    return Tensor.of(tensor.name, classes if is_batched else classes[0], "BYTES")
