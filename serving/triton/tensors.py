"""Converts between NumPy arrays and the tensors in Triton's gRPC messages, which are raw bytes with
a name, a datatype and a shape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2
from tritonclient.utils import (
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

Array = NDArray[Any]
Parameters = Mapping[str, bool | int | float | str]
# the size in bytes of one element of each datatype
SIZES = {
    "BOOL": 1,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
DATATYPES = {"BYTES", *SIZES}
BF16 = np.dtype(triton_to_np_dtype("BF16"))


@dataclass(slots=True)
class Tensor:
    """An input or output of a model. `data` contains its numbers in little-endian order, or its
    strings, each preceded by its length."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview

    @classmethod
    def of(cls, name: str, array: Array, datatype: str = "") -> "Tensor":
        """Convert an array to a tensor. If `datatype` is "", the array's dtype determines it. The
        values are not converted to `datatype`, except to BF16, which NumPy does not have."""
        data = to_raw(array, datatype)
        return cls(name, datatype or np_to_triton_dtype(array.dtype), array.shape, data)

    def array(self) -> Array:
        """Return the data as an array whose dtype is numpy_dtype(datatype)."""
        dtype = numpy_dtype(self.datatype)
        if self.datatype == "BYTES":
            flat: Array = deserialize_bytes_tensor(bytes(self.data))
        elif self.datatype == "BF16":
            flat = np.frombuffer(self.data, BF16).astype(dtype)
        else:
            flat = np.frombuffer(self.data, dtype)
        return flat.reshape(self.shape)


@dataclass(slots=True)
class InferRequest:
    """An inference request to Triton. If `version` is "", the latest version answers. If `outputs`
    is empty, all outputs are returned."""

    model: str
    version: str
    inputs: tuple[Tensor, ...]
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    outputs: Sequence[str] = ()
    traceparent: str = ""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("traceparent", self.traceparent),) if self.traceparent else ()

    def message(self, regions: Mapping[str, str]) -> Any:
        """Return the request as a protobuf message. `regions` maps inputs to the shared-memory
        regions from which Triton reads them; the data of other inputs is part of the message."""
        message = service_pb2.ModelInferRequest(
            model_name=self.model, model_version=self.version, id=self.id
        )
        for tensor in self.inputs:
            added = message.inputs.add(
                name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
            )
            if region := regions.get(tensor.name):
                added.parameters["shared_memory_region"].string_param = region
                added.parameters["shared_memory_byte_size"].int64_param = len(tensor.data)
            else:
                message.raw_input_contents.append(bytes(tensor.data))
        for name, value in self.parameters.items():
            setattr(message.parameters[name], _PARAMETER_FIELDS[type(value)], value)
        for name in self.outputs:
            message.outputs.add(name=name)
        return message


@dataclass(slots=True)
class InferReply:
    """Triton's reply to a call: its outputs, and the version of the model that answered."""

    version: str
    outputs: tuple[Tensor, ...]
    parameters: Parameters = field(default_factory=dict)

    @classmethod
    def of(cls, message: Any) -> "InferReply":
        outputs = [
            Tensor(output.name, output.datatype, tuple(output.shape), raw)
            for output, raw in zip(message.outputs, message.raw_output_contents, strict=True)
        ]
        parameters = {
            name: getattr(value, value.WhichOneof("parameter_choice"))
            for name, value in message.parameters.items()
            if name != "triton_final_response"  # Triton itself adds this
        }
        return cls(message.model_version, tuple(outputs), parameters)

    def arrays(self) -> dict[str, Array]:
        return {tensor.name: tensor.array() for tensor in self.outputs}


# the fields of a gRPC message that hold parameters of these types
_PARAMETER_FIELDS = {
    bool: "bool_param",
    int: "int64_param",
    float: "double_param",
    str: "string_param",
}


def to_raw(array: Array, datatype: str = "") -> bytes | memoryview:
    """Return an array's data in the format of Triton's gRPC messages. Do not copy the data if
    possible."""
    if datatype == "BF16":
        array = array.astype(BF16)  # rounds to the nearest value, ties to even
    if array.dtype.kind in "OSU":
        # an array that contains one bytes object, or nothing if `array` is empty
        serialized = serialize_byte_tensor(array)
        return bytes(serialized.item()) if serialized.size else b""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """Return the NumPy dtype for arrays of a Triton datatype. It is object for BYTES, and float32
    for BF16, which NumPy does not have."""
    return np.dtype(np.float32 if datatype == "BF16" else triton_to_np_dtype(datatype))
