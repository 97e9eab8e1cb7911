"""Tensors as they travel over gRPC: raw bytes beside their names, datatypes and shapes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, serialize_byte_tensor, triton_to_np_dtype

from serving.triton.shared_memory import Region

Arrays = Mapping[str, NDArray[Any]]
Regions = Mapping[str, Region]  # input name -> where the input lies
Parameters = Mapping[str, bool | int | float | str]


@dataclass(frozen=True)
class Reply:
    """The outputs of one call and the version that made them."""

    version: str
    outputs: dict[str, NDArray[Any]]
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True)
class RawTensor:
    """One input as it travels: `raw` holds its numbers, or its strings each with its length before it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes


def raw_tensors(inputs: Arrays) -> list[RawTensor]:
    """Arrays in the model's dtypes as they travel."""
    return [
        RawTensor(name, np_to_triton_dtype(array.dtype), array.shape, to_raw(array)) for name, array in inputs.items()
    ]


def infer_request(
    model: str, version: str, inputs: Sequence[RawTensor], request_id: str, parameters: Parameters
) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    for tensor in inputs:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.raw)
    for name, value in parameters.items():
        setattr(request.parameters[name], _PARAMETER_FIELDS[type(value)], value)
    return request


def add_region(request: Any, name: str, array: NDArray[Any], region: Region) -> None:
    """An input that Triton reads in shared memory."""
    tensor = request.inputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
    tensor.parameters["shared_memory_region"].string_param = region.name
    tensor.parameters["shared_memory_byte_size"].int64_param = array.nbytes


_PARAMETER_FIELDS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}


def to_raw(array: NDArray[Any]) -> bytes:
    if array.dtype == np.object_ or array.dtype.type in (np.bytes_, np.str_):
        serialized = serialize_byte_tensor(array)
        return bytes(serialized.item()) if serialized.size else b""
    return np.ascontiguousarray(array).tobytes()


def read_reply(response: Any) -> Reply:
    given = response.parameters.items()
    parameters = {key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in given}
    parameters.pop("triton_final_response", None)
    return Reply(response.model_version, dict(_read_outputs(response)), parameters)


def _read_outputs(response: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        shape = tuple(output.shape)
        if output.datatype == "BYTES":
            yield output.name, deserialize_bytes_tensor(raw).reshape(shape)
        elif output.datatype == "BF16":
            yield output.name, bf16_to_float32(raw).reshape(shape)
        else:
            yield output.name, np.frombuffer(raw, dtype=triton_to_np_dtype(output.datatype)).reshape(shape)


def bf16_to_float32(raw: bytes) -> NDArray[np.float32]:
    """bfloat16 is the upper half of a float32; numpy has no such type."""
    return (np.frombuffer(raw, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)


def float32_to_bf16(array: NDArray[np.float32]) -> bytes:
    """Rounded to the nearest, ties to even, as the hardware does."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return bytes(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes())


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """Triton's spelling -> numpy's dtype (BYTES: object)."""
    return np.dtype(triton_to_np_dtype(datatype))
