"""Reads and writes KServe v2 tensors, as JSON or as binary data after a JSON header.

    {"inputs": [{"name", "shape", "datatype", "data"}], "outputs": [{"name"}],
     "parameters": {…}, "id": "…"}
    {"inputs": [{"name", "shape", "datatype", "parameters": {"binary_data_size": N}}]}BYTES…

If the header's length is 0, the input is raw: the whole body is the data of the model's only input.
"""

import io
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import orjson
from msgspec import UNSET

from clients.base import Model, TensorSpec
from serving.bodies import schemas
from serving.bodies.schemas import JsonObject
from serving.bodies.values import (
    check_shape,
    flat_array,
    json_values,
    request_parameters,
    reserve_json,
    write_items,
)
from serving.bodies.writing import tensor_reply
from serving.budget import MOST_NAMED, MOST_STRINGS, Budget, check_count, in_time
from serving.codecs import ROW
from serving.errors import InvalidRequest
from serving.headers import CSV, JSON_TYPE, NPY_TYPE, preferred
from serving.job import Job, Reply, Step
from serving.model_status.served_model import ServedModel
from serving.named_value import nearest, unknown
from serving.request import Request, Target
from serving.request_memory import SORTED, reserve, strings_memory
from serving.sessions import SEQUENCE_END
from serving.triton.tensors import DATATYPES, SIZES, Array, InferReply, Tensor, to_raw

BINARY_TYPE = "application/vnd.sagemaker-triton.binary+json"
# the datatypes of outputs for which classes can be requested; the same as in Triton
SCORE_DATATYPES = DATATYPES - {"BOOL", "BYTES", "FP16", "BF16"}
OTHER_BODIES = ("instances", "payload")  # keys that occur only in bodies without tensors
LONGEST_KEY = 40  # how many characters of an unknown key difflib compares
MOST_OTHERS = 100  # how many unknown keys are compared with all fields, which is slow
# the HTTP header in which KServe puts the length of the JSON header
HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class TensorBody:
    """A body with tensors. `document` is its JSON, `binary` is the data after the JSON, and
    `length` is the size of the whole body in bytes.

    `is_kserve` is true if the request came through one of KServe's own routes. If a reply of such a
    route contains binary data, its header HEADER_LENGTH is the length of the JSON.
    """

    document: schemas.Tensors
    length: int
    binary: bytes | memoryview = b""
    is_kserve: bool = False

    @property
    def named(self) -> Target:
        return self.document.target()

    def bind(self, served: ServedModel, request: Request) -> Job:
        return TensorJob(served, request, self)

    def inputs(self, job: Job) -> list[Tensor]:
        """Return the inputs of the job's only step. Raise a ServingError if one is invalid or takes
        too much memory."""
        served = job.served
        inputs = read_inputs(self.document, self.binary, self.length)
        if served.client and served.client.codec is ROW:
            inputs = [widened(tensor, served.model.inputs) for tensor in inputs]
        _check_inputs(served.model, inputs)
        return inputs


class TensorJob(Job):
    """Calls the model once with the tensors of a body."""

    def __init__(self, served: ServedModel, request: Request, body: TensorBody) -> None:
        """Raise InvalidRequest if the body requests classes of an output that has none, or if a
        flag or the id of the session is invalid. Raise SessionNotFound if the id does not fit the
        model."""
        document = body.document
        self.document = document
        self.body = body
        self.parameters = document.parameters or {}
        flags: dict[str, Any] = {}
        if document.sequence_end is not UNSET:
            flags[SEQUENCE_END] = document.sequence_end
        super().__init__(served, request, flags, self.parameters)
        # if an output is listed twice, the first entry counts
        self.outputs: dict[str, schemas.OutputParameters] = {}
        for output in document.outputs:
            self.outputs.setdefault(output.name, output.parameters or schemas.OutputParameters())
        # maps each output that is to be returned as classes to the number of classes
        self.classes: dict[str, Any] = {
            name: options.classification
            for name, options in self.outputs.items()
            if options.classification
        }
        for spec in served.model.outputs:
            if spec.name in self.classes and spec.datatype not in SCORE_DATATYPES:
                kinds = ", ".join(sorted(SCORE_DATATYPES))
                problem = f"output '{spec.name}' is {spec.datatype}, which has no classes"
                raise InvalidRequest(f"{problem}: classification takes {kinds}")

    def prepare(self, before: Step | None = None) -> Step:
        """Return the job's only step."""
        forwarded = {
            name: value for name, value in self.parameters.items() if name != "binary_data_output"
        }
        parameters = request_parameters(self, forwarded)
        return Step(self.body.inputs(self), parameters, tuple(self.outputs))

    def finish(self, step: Step, replies: Sequence[InferReply]) -> InferReply:
        """Return the model's reply, in which outputs are replaced by classes if the body requests
        classes. Raise PayloadTooLarge or Overloaded if the classes take too much memory."""
        reply = replies[-1]
        if not self.classes:
            return reply
        return replace(reply, outputs=tuple(map(self._with_classes, reply.outputs)))

    def _with_classes(self, tensor: Tensor) -> Tensor:
        if tensor.name not in self.classes:
            return tensor
        is_batched = self.served.model.max_batch_size > 0
        labels = self.served.labels.get(tensor.name, ())
        return classified(
            tensor, self.classes[tensor.name], is_batched, labels, self.request.budget
        )

    def reply(self, results: Iterator[InferReply]) -> Reply:
        (result,) = results
        binary = self._binary_outputs(result)
        request = self.request
        kind = preferred(request.accept, CSV, NPY_TYPE)
        if kind != JSON_TYPE and not binary:
            return tensor_reply(self.served, result, kind, request.budget)
        header = write_reply(self.served, result, request.budget, self.document.id, binary)
        if not binary:
            return Reply(header, version=result.version)
        data = [tensor.data for tensor in result.outputs if tensor.name in binary]
        with reserve(sum(map(len, data)), "the binary data of the answer"):
            content = b"".join([header, *data])
        if self.body.is_kserve:
            return Reply(
                content,
                "application/octet-stream",
                result.version,
                {HEADER_LENGTH: str(len(header))},
            )
        return Reply(content, f"{BINARY_TYPE};json-header-size={len(header)}", result.version)

    def line(self, result: InferReply) -> bytes:
        return write_reply(self.served, result, self.request.budget, self.document.id)

    def _binary_outputs(self, result: InferReply) -> set[str]:
        """Return the names of the outputs that are to be returned as binary data after the JSON of
        the reply, whatever Accept says. The parameter `binary_data` of an output takes precedence
        over the parameter `binary_data_output` of the request."""
        default = bool(self.parameters.get("binary_data_output", False))
        chosen = {
            name: options.binary_data
            for name, options in self.outputs.items()
            if options.binary_data is not UNSET
        }
        return {tensor.name for tensor in result.outputs if chosen.get(tensor.name, default)}


def _check_inputs(model: Model, inputs: Sequence[Tensor]) -> None:
    """Raise InvalidRequest if there are no inputs although the model needs some, or if an input has
    more or fewer dimensions than the model expects."""
    batch = [-1] if model.max_batch_size else []
    shapes = {spec.name: [*batch, *spec.shape] for spec in model.inputs}
    if not (inputs or model.takes_nothing):
        takes = [f"{spec.name} {spec.datatype} {shapes[spec.name]}" for spec in model.inputs]
        raise InvalidRequest(f"'inputs' is empty; model '{model.name}' takes {', '.join(takes)}")
    for tensor in inputs:
        expected = shapes.get(tensor.name, tensor.shape)
        if len(tensor.shape) != len(expected):
            raise InvalidRequest(
                f"input '{tensor.name}': its shape is {list(tensor.shape)}, expected {expected}"
            )


class RawBody(TensorBody):
    """A body without JSON, which is the data of the model's only input."""

    def inputs(self, job: Job) -> list[Tensor]:
        if job.request.stream:
            raise InvalidRequest(
                "raw binary input (json-header-size=0) cannot be streamed; send the JSON header too"
            )
        if job.session:
            raise InvalidRequest(
                "raw binary input (json-header-size=0) cannot be part of a session: send its JSON"
            )
        return [raw_input(job.served.model, self.binary)]


def read_inputs(document: schemas.Tensors, binary: bytes | memoryview, length: int) -> list[Tensor]:
    """Return the tensors of a body of `length` bytes. `document` is its JSON, and `binary` is the
    data after the JSON. Raise a ServingError if a tensor is invalid or takes too much memory."""
    inputs = []
    for entry in in_time(document.inputs):
        size = entry.parameters.binary_data_size if entry.parameters else None
        try:
            if entry.datatype not in DATATYPES:
                raise InvalidRequest(unknown("datatype", entry.datatype, DATATYPES))
            if size is not None and size > len(binary):
                raise InvalidRequest(f"binary_data_size is {size}, {len(binary)} bytes are left")
            shape = check_shape(entry.shape, length)
            if size is None:
                inputs.append(_tensor_of_json(entry, shape))
            else:
                inputs.append(_tensor_of_bytes(entry, shape, binary[:size]))
                binary = binary[size:]
        except InvalidRequest as err:
            raise InvalidRequest(f"input '{entry.name}': {err}") from err
    if len(binary):
        raise InvalidRequest(
            f"{len(binary)} bytes of the body belong to no input (binary_data_size)"
        )
    return inputs


def _tensor_of_json(entry: schemas.Input, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor of an input whose values are in the JSON. Raise a ServingError if they are
    missing, do not fit the datatype or the shape, or take too much memory."""
    if entry.data is UNSET:
        raise InvalidRequest("it has no data, and no binary_data_size in its parameters")
    flat = flat_array(entry.datatype, entry.data)
    if flat.size != math.prod(shape):
        raise InvalidRequest(
            f"its shape {list(shape)} does not fit the {flat.size} values in its data"
        )
    return Tensor(entry.name, entry.datatype, shape, to_raw(flat, entry.datatype))


def _tensor_of_bytes(
    entry: schemas.Input, shape: tuple[int, ...], data: bytes | memoryview
) -> Tensor:
    """Return the tensor of an input whose values are `data`, which are bytes after the JSON. Raise
    InvalidRequest if they do not fill the shape or the JSON also has values, and PayloadTooLarge if
    there are too many strings."""
    if entry.data is not UNSET:
        raise InvalidRequest("it has both data and binary_data_size; send one of them")
    count = math.prod(shape)
    if entry.datatype == "BYTES":  # Triton checks that the data contains `count` strings
        check_count(count, MOST_STRINGS, "strings")
    elif count * SIZES[entry.datatype] != len(data):
        raise InvalidRequest(
            f"{len(data)} bytes of binary data do not fill its shape {list(shape)} of "
            f"{entry.datatype}"
        )
    return Tensor(entry.name, entry.datatype, shape, data)


def widened(tensor: Tensor, specs: Sequence[TensorSpec]) -> Tensor:
    """Convert an FP32 tensor to FP64 if the model's input of that name is FP64. Callers may still
    send FP32, because earlier versions of table models had such inputs."""
    datatypes = {spec.name: spec.datatype for spec in specs}
    if tensor.datatype != "FP32" or datatypes.get(tensor.name) != "FP64":
        return tensor
    return Tensor.of(tensor.name, tensor.array().astype(np.float64), "FP64")


def write_reply(
    served: ServedModel,
    reply: InferReply,
    budget: Budget,
    own_id: str = "",
    binary: Collection[str] = (),
) -> bytes:
    """Return the JSON of a KServe v2 reply. `own_id` is the id in the caller's body. For the
    outputs named in `binary`, the reply contains the size of the data instead of the data. Raise
    PayloadTooLarge or Overloaded if it takes too much memory, and TooLate if the request has no
    time left."""
    document: JsonObject = {"id": own_id} if own_id else {}
    document |= {"model_name": served.public_name, "model_version": reply.version}
    if reply.parameters:
        document["parameters"] = dict(reply.parameters)
    text = io.BytesIO()
    # leave the list of outputs open, to write the outputs into it one by one
    text.write(orjson.dumps({**document, "outputs": []}).removesuffix(b"]}"))
    with reserve_json([tensor for tensor in reply.outputs if tensor.name not in binary], budget):
        for number, tensor in enumerate(reply.outputs):
            about: JsonObject = {"name": tensor.name, "datatype": tensor.datatype}
            about["shape"] = tensor.shape
            if tensor.name in binary:
                about["parameters"] = {"binary_data_size": len(tensor.data)}
            if number:
                text.write(b",")
            text.write(orjson.dumps(about).removesuffix(b"}"))
            if tensor.name not in binary:
                text.write(b',"data":[')
                write_items(text, json_values(tensor))
                text.write(b"]")
            text.write(b"}")
        text.write(b"]}")
        return text.getvalue()


def only_input(model: Model, body: str, remedy: str) -> TensorSpec:
    """Return the model's only input. Raise InvalidRequest if it has several inputs or none. In the
    error, `body` describes the body, which is a single tensor, and `remedy` says what to send
    instead."""
    if len(model.inputs) != 1:
        names = ", ".join(spec.name for spec in model.inputs)
        raise InvalidRequest(
            f"{body} is one tensor, and model '{model.name}' has {len(model.inputs)} inputs "
            f"({names}); send {remedy}"
        )
    return model.inputs[0]


def raw_input(model: Model, data: bytes | memoryview) -> Tensor:
    """Return the model's only input, with the whole body as its data. As in Triton
    (infer_request.cc), a dimension of -1 is computed from the length of the data, and an input of
    strings contains one string. Raise InvalidRequest if the data does not fill the shape, or if the
    model does not have exactly one input."""
    spec = only_input(model, "raw binary input", "the JSON header too")
    batch = (1,) if model.max_batch_size else ()
    if spec.datatype == "BYTES":
        if any(size not in (1, -1) for size in spec.shape):
            raise InvalidRequest(
                f"raw input '{spec.name}': the model takes {list(spec.shape)} strings, and "
                "this is one"
            )
        ones = [1] * len(spec.shape)
        string = len(data).to_bytes(4, "little") + bytes(data)
        return Tensor(spec.name, "BYTES", (*batch, *ones), string)
    count, rest = divmod(len(data), SIZES[spec.datatype])
    shape = filled(spec.shape, count)
    if shape is None or rest:
        raise InvalidRequest(
            f"raw input '{spec.name}': {len(data)} bytes do not fill {list(spec.shape)} of "
            f"{spec.datatype}"
        )
    return Tensor(spec.name, spec.datatype, (*batch, *shape), data)


def filled(shape: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Return the shape with its -1, if it has one, replaced so that a tensor of this shape has
    `count` elements. Return None if that is impossible, or if the shape has several -1."""
    fixed = math.prod(size for size in shape if size != -1)
    is_divisible = fixed > 0 and count % fixed == 0
    if not is_divisible or shape.count(-1) > 1:
        return None
    missing = count // fixed
    full = tuple(missing if size == -1 else size for size in shape)
    # without -1, the shape may have fewer elements: `count` may be a multiple of their number
    return full if math.prod(full) == count else None


def check_misspelt(keys: Collection[str]) -> None:
    """Raise InvalidRequest if a key of a body of tensors belongs to a body of instances, or if one
    of the first MOST_OTHERS unknown keys is a misspelt field. Ignore other unknown keys, as Triton
    does. Raise PayloadTooLarge if there are more than MOST_NAMED keys."""
    check_count(len(keys), MOST_NAMED, "keys")
    fields = schemas.Tensors.__struct_fields__
    for key in OTHER_BODIES:
        if key in keys:
            raise InvalidRequest(
                f"the body has '{key}' and 'inputs' with tensors: send one of them"
            )
    unknown_keys = (key for key in keys if key not in fields)
    for key in islice(unknown_keys, MOST_OTHERS):
        start = key[:LONGEST_KEY]
        if nearest(start, fields):
            raise InvalidRequest(f"the body with 'inputs': {unknown('key', start, fields)}")


def classified(
    tensor: Tensor, count: int, is_batched: bool, labels: Sequence[bytes], budget: Budget
) -> Tensor:
    """Return the `count` classes with the highest scores in each row of an output, as a tensor of
    strings. Its shape is [rows, classes], or [classes] for a model without a batch dimension. The
    highest score comes first. Equal scores are ordered by index. `labels` are the names of the
    classes by index. Raise PayloadTooLarge or Overloaded if the classes take too much memory."""
    shape = tensor.shape if is_batched else (1, *tensor.shape)
    rows = shape[0]
    width = math.prod(shape[1:])
    count = min(count, width)
    check_count(rows * count, MOST_STRINGS, f"classes of output '{tensor.name}'", "ask for fewer")
    sorting = SORTED * rows * width
    reserve(sorting + strings_memory(rows * count, 0), f"sorting output '{tensor.name}'")
    scores = tensor.array().reshape(rows, width)
    order = _best(scores, count)
    best = np.take_along_axis(scores, order, axis=1)
    classes = []
    length = 0
    for score, index in zip(best.ravel().tolist(), order.ravel().tolist(), strict=True):
        label = labels[index] if index < len(labels) else b""
        classes.append(_class_text(score, index, label))
        length += len(classes[-1])
        budget.check_output(length)
    array = np.array(classes, np.object_)
    if is_batched:
        array = array.reshape(order.shape)
    return Tensor.of(tensor.name, array, "BYTES")


def _best(scores: Array, count: int) -> Array:
    """Return the indices of the `count` highest scores in each row, the highest score first. Equal
    scores are ordered by index."""
    # Sort the mirrored rows, so that the stable sort puts equal scores in descending order of their
    # original index. Reversing the result then puts them in ascending order. (Unsigned scores
    # cannot be negated instead.)
    ascending = np.argsort(scores[:, ::-1], axis=1, kind="stable")
    best = ascending[:, ::-1][:, :count]
    last = scores.shape[1] - 1
    return last - best


def _class_text(score: float, index: int, label: bytes) -> bytes:
    """Return a class as Triton writes it: SCORE:INDEX or SCORE:INDEX:LABEL."""
    form = "%f:%d" if isinstance(score, float) else "%d:%d"
    text = (form % (score, index)).encode()
    return text + b":" + label if label else text
