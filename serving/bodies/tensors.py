"""Tensor bodies: KServe v2, sent on to Triton as they are, and numpy's npy files.

Triton's JSON knows no FP16 and no BF16; here such tensors become binary on the way in and JSON numbers on the
way out, so that a caller need not care.
"""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from clients.base import Model, TensorSpec
from serving.bodies.invocation import BINARY_TYPE, TensorBody
from serving.codecs import describe
from serving.errors import DecodingError, InvalidRequest
from serving.triton.gateway import HttpReply
from serving.triton.tensors import bf16_to_float32, float32_to_bf16, numpy_dtype

HALVES = ("FP16", "BF16")


@dataclass(frozen=True)
class Outgoing:
    """What goes to Triton, and the half-precision outputs that come back as JSON numbers."""

    body: bytes
    header_length: int | None
    halves: frozenset[str] = frozenset()

    def headers(self) -> dict[str, str]:
        """The HTTP headers that Triton reads."""
        if self.header_length is None:
            return {"Content-Type": "application/json"}
        return {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(self.header_length)}


def to_triton(tensors: TensorBody, model: Model) -> Outgoing:
    """The body for Triton: the very same bytes unless half-precision numbers stand in its JSON."""
    document = tensors.document
    if document is None:
        return Outgoing(tensors.body, tensors.header_length)
    inputs = _objects(document.get("inputs"), "inputs")
    outputs = _objects(document["outputs"], "outputs") if "outputs" in document else []
    check_shapes(inputs, len(tensors.body))
    _check_private(inputs + outputs)
    halves = _half_outputs(document, model)
    if not halves and not any(_is_half_json(tensor) for tensor in inputs):
        return Outgoing(tensors.body, tensors.header_length)
    binary = tensors.body[tensors.header_length :] if tensors.header_length is not None else b""
    rewritten, blobs = _binary_inputs(inputs, binary)
    header = orjson.dumps({**document, "inputs": rewritten, "outputs": _binary_outputs(document, model, halves)})
    return Outgoing(b"".join([header, *blobs]), len(header), halves)


def from_triton(reply: HttpReply, halves: frozenset[str]) -> HttpReply:
    """The reply with those outputs as JSON numbers; untouched when there are none."""
    if not halves or reply.header_length is None:
        return reply
    document = orjson.loads(reply.body[: reply.header_length])
    rest, kept = reply.body[reply.header_length :], []
    for output in document["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            continue
        blob, rest = rest[:size], rest[size:]
        if output["name"] in halves:
            del output["parameters"]["binary_data_size"]
            output["data"] = _numbers(blob, output["datatype"])
        else:
            kept.append(blob)
    header = orjson.dumps(document)
    return HttpReply(b"".join([header, *kept]), len(header) if kept else None)


def with_parameters(tensors: TensorBody, parameters: Mapping[str, Any]) -> TensorBody:
    """The same body with these parameters of the request in its JSON; raises InvalidRequest where it has none."""
    if tensors.document is None:
        raise InvalidRequest("raw binary input (json-header-size=0) cannot be part of a session; send its JSON header")
    given = tensors.document.get("parameters") or {}
    if not isinstance(given, dict):
        raise InvalidRequest(f"'parameters' must be an object, got {describe(given)}")
    document = {**tensors.document, "parameters": {**given, **parameters}}
    header = orjson.dumps(document)
    if tensors.header_length is None:
        return TensorBody(header, None, document)
    return TensorBody(header + tensors.body[tensors.header_length :], len(header), document)


def reply_type(reply: HttpReply) -> str:
    """The Content-Type that SageMaker's callers know for it."""
    if reply.header_length is None:
        return "application/json"
    return f"{BINARY_TYPE};json-header-size={reply.header_length}"


def _objects(value: Any, field: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(tensor, dict) for tensor in value):
        raise InvalidRequest(
            f"'{field}' must be a list of tensors, each an object with name, shape, datatype and data; "
            f"got {describe(value)}"
        )
    return value


def check_shapes(inputs: list[dict[str, Any]], length: int) -> None:
    """Raises InvalidRequest for an input that a body of `length` bytes cannot hold: every element takes one at least.

    Triton makes room for a shape before it looks at the data, and dies of one that is too large.
    """
    for tensor in inputs:
        shape = tensor.get("shape")
        sizes = [size for size in shape if isinstance(size, int)] if isinstance(shape, list) else []
        if math.prod(sizes) > length or any(size > length for size in sizes):
            raise InvalidRequest(
                f"input '{tensor.get('name')}': the body of {length} bytes cannot hold a tensor of shape {shape}"
            )


def _check_private(tensors: list[dict[str, Any]]) -> None:
    """The shared memory that Triton knows is not the caller's."""
    for tensor in tensors:
        parameters = tensor.get("parameters")
        if isinstance(parameters, dict) and "shared_memory_region" in parameters:
            raise InvalidRequest(
                f"tensor '{tensor.get('name')}': there is no shared memory with a caller; send the data in the body"
            )


def _is_half_json(tensor: Mapping[str, Any]) -> bool:
    return tensor.get("datatype") in HALVES and "data" in tensor


def _half_outputs(document: Mapping[str, Any], model: Model) -> frozenset[str]:
    """The half-precision outputs that this request wants as JSON."""
    halves = {spec.name for spec in model.outputs if spec.datatype in HALVES}
    return frozenset(
        output["name"]
        for output in _wanted(document, model)
        if output.get("name") in halves and not _wants_binary(document, output)
    )


def _wanted(document: Mapping[str, Any], model: Model) -> list[dict[str, Any]]:
    return document.get("outputs") or [{"name": spec.name} for spec in model.outputs]


def _wants_binary(document: Mapping[str, Any], output: Mapping[str, Any]) -> bool:
    default = (document.get("parameters") or {}).get("binary_data_output", False)
    return bool((output.get("parameters") or {}).get("binary_data", default))


def _binary_outputs(document: Mapping[str, Any], model: Model, halves: frozenset[str]) -> list[dict[str, Any]]:
    return [
        {**output, "parameters": {**(output.get("parameters") or {}), "binary_data": True}}
        if output.get("name") in halves
        else output
        for output in _wanted(document, model)
    ]


def _binary_inputs(inputs: list[dict[str, Any]], binary: bytes) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The inputs with half-precision numbers made binary, and all binary parts in the order of the inputs."""
    rewritten, blobs, rest = [], [], binary
    for tensor in inputs:
        size = (tensor.get("parameters") or {}).get("binary_data_size")
        if _is_half_json(tensor):
            blob = _half_bytes(tensor)
            parameters = {**(tensor.get("parameters") or {}), "binary_data_size": len(blob)}
            tensor = {k: v for k, v in tensor.items() if k != "data"} | {"parameters": parameters}
        elif isinstance(size, int):
            blob, rest = rest[:size], rest[size:]
        else:
            blob = b""
        rewritten.append(tensor)
        blobs.append(blob)
    return rewritten, [*blobs, rest]


def _half_bytes(tensor: Mapping[str, Any]) -> bytes:
    try:
        numbers = np.asarray(tensor["data"], dtype=np.float32)
    except (TypeError, ValueError) as err:
        raise InvalidRequest(f"input '{tensor.get('name')}': its data are not numbers ({err})") from err
    if tensor["datatype"] == "BF16":
        return float32_to_bf16(numbers)
    return numbers.astype(np.float16).tobytes()


def _numbers(blob: bytes, datatype: str) -> list[float]:
    array = bf16_to_float32(blob) if datatype == "BF16" else np.frombuffer(blob, dtype=np.float16)
    return [float(number) for number in array]


def read_npy(body: bytes, model: Model) -> tuple[str, NDArray[Any]]:
    """(input name, array in its dtype, batch first); raises DecodingError or InvalidRequest."""
    if len(model.inputs) != 1:
        raise InvalidRequest(
            f"an npy body is one tensor, and model '{model.name}' has {len(model.inputs)} inputs "
            f"({', '.join(spec.name for spec in model.inputs)}); send KServe v2 tensors"
        )
    try:
        array = np.load(io.BytesIO(body), allow_pickle=False)
    except (ValueError, OSError, EOFError) as err:
        raise DecodingError(f"not an npy file that can be read without pickle ({err})", field="body") from err
    return model.inputs[0].name, _fitted(array, model.inputs[0], model.max_batch_size)


def _fitted(array: NDArray[Any], spec: TensorSpec, max_batch_size: int) -> NDArray[Any]:
    dtype = numpy_dtype(spec.datatype)
    if spec.datatype == "BYTES" and array.dtype.kind in "SU":
        array = np.char.encode(array) if array.dtype.kind == "U" else array
    elif not np.can_cast(array.dtype, dtype, casting="same_kind"):
        raise InvalidRequest(f"input '{spec.name}' is {spec.datatype}, the npy file holds {array.dtype}")
    if max_batch_size and array.ndim == len(spec.shape):
        array = array[np.newaxis]
    return array.astype(dtype, copy=False)


def write_npy(array: NDArray[Any]) -> bytes:
    """The array as an npy file; strings become fixed-width bytes."""
    buffer = io.BytesIO()
    np.save(buffer, array.astype(np.bytes_) if array.dtype == np.object_ else array, allow_pickle=False)
    return buffer.getvalue()


def write_json(
    name: str, version: str, outputs: Mapping[str, NDArray[Any]], model: Model, request_id: str = ""
) -> bytes:
    """Outputs as a KServe v2 reply; `request_id` is the one in the request's body."""
    datatypes = {spec.name: spec.datatype for spec in model.outputs}
    tensors = [
        {"name": key, "datatype": datatypes.get(key, ""), "shape": list(array.shape), "data": _json_data(array)}
        for key, array in outputs.items()
    ]
    named = {"id": request_id} if request_id else {}
    return orjson.dumps({**named, "model_name": name, "model_version": version, "outputs": tensors})


def _json_data(array: NDArray[Any]) -> list[Any]:
    flat: list[Any] = array.reshape(-1).tolist()
    return [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in flat]
