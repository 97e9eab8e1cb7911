"""Tensor bodies for Triton's gRPC: KServe v2 and the flat JSON of Triton's generate extension.

    {"inputs": [{"name", "shape", "datatype", "data"}], "outputs": [{"name"}], "parameters": {…}}
    {"text_input": "…", "max_tokens": 8}      inputs by name, what is no input is a parameter

Bodies that Triton's HTTP endpoint takes as they are don't come here (serving/bodies/tensors.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from clients.base import Model, TensorSpec
from serving.bodies.invocation import RESERVED, FlatBody, TensorBody
from serving.bodies.tensors import check_shapes
from serving.codecs import describe
from serving.errors import InvalidRequest
from serving.triton.tensors import RawTensor, Reply, float32_to_bf16, numpy_dtype, to_raw

KINDS: dict[str, tuple[type, ...]] = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}  # numpy's kinds
DATATYPES = {
    "BOOL",
    "BYTES",
    "BF16",
    *(f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)),
    *(f"FP{bits}" for bits in (16, 32, 64)),
}


@dataclass(frozen=True)
class Inference:
    """What goes to Triton; `id` is the caller's, for the replies; no `outputs` means all of them."""

    inputs: tuple[RawTensor, ...]
    parameters: Mapping[str, Any]
    outputs: tuple[str, ...] = ()
    id: str = ""


def read_tensors(body: TensorBody) -> Inference:
    """A KServe v2 body; raises InvalidRequest."""
    document = body.document
    if document is None:
        raise InvalidRequest("raw binary input (json-header-size=0) cannot be streamed; send the JSON header too")
    rest = memoryview(body.body)[body.header_length or 0 :] if body.header_length is not None else memoryview(b"")
    inputs = []
    check_shapes(_objects(document, "inputs"), len(body.body))
    for tensor in _objects(document, "inputs"):
        size = _object(tensor, "parameters").get("binary_data_size")
        if size is not None and not (isinstance(size, int) and 0 <= size <= len(rest)):
            raise InvalidRequest(
                f"input '{tensor.get('name')}': binary_data_size is {size}, {len(rest)} bytes are left"
            )
        inputs.append(_tensor(tensor, None if size is None else bytes(rest[:size])))
        rest = rest[size or 0 :]
    outputs = tuple(str(output.get("name")) for output in _objects(document, "outputs"))
    return Inference(tuple(inputs), _parameters(_object(document, "parameters")), outputs, str(document.get("id", "")))


def _objects(document: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    value = document.get(field, [])
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidRequest(f"'{field}' must be a list of tensors, each an object; got {describe(value)}")
    return value


def _object(document: Mapping[str, Any], field: str) -> dict[str, Any]:
    value = document.get(field) or {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"'{field}' must be an object, got {describe(value)}")
    return value


def _tensor(tensor: Mapping[str, Any], binary: bytes | None) -> RawTensor:
    name, datatype, shape = tensor.get("name"), tensor.get("datatype"), tensor.get("shape")
    if not isinstance(name, str) or not isinstance(datatype, str) or not isinstance(shape, list):
        raise InvalidRequest(f"an input needs name, shape and datatype; got {describe(dict(tensor))}")
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise InvalidRequest(f"input '{name}': its shape must be a list of whole numbers, got {shape}")
    if binary is None:
        flat = _read_data(name, datatype, tensor.get("data"))
        if flat.size != int(np.prod(shape)):
            raise InvalidRequest(f"input '{name}': its shape {shape} does not fit the {flat.size} values in its data")
        binary = _raw(flat, datatype)
    return RawTensor(name, datatype, tuple(shape), binary)


def _read_data(name: str, datatype: str, data: Any) -> NDArray[Any]:
    """JSON's values, nested or flat, as a flat array of the datatype (BF16: of float32)."""
    values = list(_flatten(data)) if isinstance(data, list) else [data]
    if datatype not in DATATYPES:
        raise InvalidRequest(
            f"input '{name}': there is no datatype '{datatype}'; there are {', '.join(sorted(DATATYPES))}"
        )
    try:
        if datatype == "BYTES":
            return np.array([value.encode() for value in values], dtype=np.object_)
        dtype = np.dtype(np.float32) if datatype == "BF16" else numpy_dtype(datatype)
        _check_values(values, dtype)
        return np.array(values, dtype=dtype)
    except (TypeError, ValueError, AttributeError, OverflowError) as err:
        raise InvalidRequest(f"input '{name}': its data do not fit {datatype} ({err})") from err


def _flatten(data: list[Any]) -> Any:
    for value in data:
        if isinstance(value, list):
            yield from _flatten(value)
        else:
            yield value


def _check_values(values: list[Any], dtype: np.dtype[Any]) -> None:
    """Raises ValueError where numpy would quietly make something else of a value."""
    for value in values:
        if not isinstance(value, KINDS[dtype.kind]) or (isinstance(value, bool) and dtype.kind != "b"):
            raise ValueError(describe(value))
    if dtype.kind in "iu" and values:
        limits = np.iinfo(dtype)
        if min(values) < limits.min or max(values) > limits.max:
            raise ValueError(f"it holds {limits.min} to {limits.max}")


def _raw(flat: NDArray[Any], datatype: str) -> bytes:
    return float32_to_bf16(flat) if datatype == "BF16" else to_raw(flat)


def read_flat(body: FlatBody, model: Model) -> Inference:
    """A flat body as Triton's generate reads it (http_server.cc): each input is one value or a flat list of
    them, and one batch row; the rest, and the object `parameters`, are parameters. Raises InvalidRequest."""
    given = {key: value for key, value in body.document.items() if key not in RESERVED | {"id", "parameters"}}
    specs = {spec.name: spec for spec in model.inputs}
    if not specs.keys() & given.keys():
        raise InvalidRequest(f"none of {sorted(given)[:8]} is an input of model '{model.name}': {', '.join(specs)}")
    inputs = [_flat_tensor(specs[key], value, model.max_batch_size) for key, value in given.items() if key in specs]
    rest = {key: value for key, value in given.items() if key not in specs}
    parameters = _parameters(rest | _object(body.document, "parameters"))
    return Inference(tuple(inputs), parameters, id=str(body.document.get("id", "")))


def _flat_tensor(spec: TensorSpec, value: Any, max_batch_size: int) -> RawTensor:
    flat = _read_data(spec.name, spec.datatype, value)
    shape = (1, flat.size) if max_batch_size else (flat.size,)
    return RawTensor(spec.name, spec.datatype, shape, _raw(flat, spec.datatype))


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        if not isinstance(value, bool | int | float | str):
            raise InvalidRequest(f"parameter '{name}' must be a number, a string, true or false; got {describe(value)}")
    return {name: value for name, value in given.items() if name != "binary_data_output"}


def write_flat(name: str, reply: Reply, request_id: str) -> bytes:
    """The reply as Triton's generate writes it: one value, or a flat list, per output; keys in their order."""
    fields = {key: _value(array) for key, array in reply.outputs.items()}
    fields |= {"model_name": name, "model_version": reply.version, **reply.parameters}
    return orjson.dumps(fields | ({"id": request_id} if request_id else {}), option=orjson.OPT_SORT_KEYS)


def _value(array: NDArray[Any]) -> Any:
    flat = [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in array.reshape(-1).tolist()]
    return flat[0] if len(flat) == 1 else flat
