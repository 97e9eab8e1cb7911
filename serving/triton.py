"""The gateway to Triton: the one seam to another process, and its errors made ours.

Tensors of clients travel over gRPC as raw bytes; KServe v2 bodies that callers send are forwarded to Triton's
own HTTP endpoint as they are. Only this module imports grpc and tritonclient. Connections are made at
first use, that is after gunicorn's fork, one channel and one pool per worker, and kept.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

import grpc
import numpy as np
import orjson
import urllib3
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.utils import (
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

from serving.errors import (
    InferenceFailed,
    InvalidRequest,
    ModelNotReady,
    Overloaded,
    ServingError,
    TritonTimeout,
    TritonUnavailable,
)

Arrays = Mapping[str, NDArray[Any]]
PROBE_SECONDS = 0.7  # for readiness calls: two of them fit into /ping's 2 s
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),  # a Triton that was started again is found at once
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]

ERRORS: dict[grpc.StatusCode, type[ServingError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequest,
    grpc.StatusCode.ALREADY_EXISTS: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: ModelNotReady,  # the registry knew the model: it has just been unloaded
    grpc.StatusCode.DEADLINE_EXCEEDED: TritonTimeout,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: TritonUnavailable,
    grpc.StatusCode.CANCELLED: TritonUnavailable,  # Triton cancels what it has when it is stopped
    grpc.StatusCode.ABORTED: TritonUnavailable,
    grpc.StatusCode.UNKNOWN: InferenceFailed,
    grpc.StatusCode.INTERNAL: InferenceFailed,
    grpc.StatusCode.UNIMPLEMENTED: InferenceFailed,
    grpc.StatusCode.DATA_LOSS: InferenceFailed,
    grpc.StatusCode.PERMISSION_DENIED: InferenceFailed,
    grpc.StatusCode.UNAUTHENTICATED: InferenceFailed,
}
HTTP_ERRORS: dict[int, type[ServingError]] = {  # what http_server.cc answers, by status
    400: InvalidRequest,
    404: ModelNotReady,
    500: InferenceFailed,
    501: InvalidRequest,
    503: ModelNotReady,
}
PARSE_ERRORS = ("Unable to parse", "failed to parse")  # the caller's mistake, though Triton answers 500
NOT_ANSWERING = "tritonserver is not answering; it is being started (again): try again shortly"
TOO_LATE = "Triton did not answer in time; try again, or raise SERVE_REQUEST_TIMEOUT"


@dataclass(frozen=True)
class IndexEntry:
    """One version of a model in Triton's repository index; `state` is READY, LOADING, UNLOADING, UNAVAILABLE."""

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True)
class Reply:
    """The outputs of one call and the version that made them."""

    version: str
    outputs: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class HttpReply:
    """What Triton's HTTP endpoint answered; `header_length` is the JSON part's when outputs are binary."""

    body: bytes
    header_length: int | None


def to_serving_error(err: grpc.RpcError) -> ServingError:
    """One of ours for any gRPC error."""
    code, details = err.code(), without_trace(err.details() or "")
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith("Request for unknown model"):
        return ModelNotReady(details)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TritonTimeout(TOO_LATE)
    if ERRORS[code] is TritonUnavailable:
        return TritonUnavailable(NOT_ANSWERING)
    return ERRORS[code](details)


def to_http_error(status: int, body: bytes) -> ServingError:
    """One of ours for a status of Triton's HTTP endpoint and its {"error": …}."""
    try:
        message = str(orjson.loads(body)["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = f"Triton answered {status}"
    if message.startswith(PARSE_ERRORS):
        return InvalidRequest(message)
    return HTTP_ERRORS.get(status, InferenceFailed)(without_trace(message))


def without_trace(message: str) -> str:
    """Triton's python backend ends its messages with a traceback; callers need the first part only."""
    return message.split("\n\nAt:\n")[0].strip()


@contextmanager
def _serving_errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as err:
        raise to_serving_error(err) from err


class Call:
    """An inference on its way; `result` waits for it."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def result(self) -> Reply:
        """The reply; raises a ServingError."""
        with _serving_errors():
            response = self._future.result()
        return Reply(response.model_version, dict(_read_outputs(response)))

    def cancel(self) -> None:
        """Tells Triton that nobody waits any more."""
        self._future.cancel()


class TritonGateway:
    """Calls to one tritonserver; safe to share between threads.

    `grpc_address` and `http_address` are "host:port"; `timeout` is the deadline of an inference in seconds.
    """

    def __init__(self, grpc_address: str, http_address: str, timeout: float) -> None:
        self.grpc_address, self.http_address, self.timeout = grpc_address, http_address, timeout

    @cached_property
    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.grpc_address, options=CHANNEL_OPTIONS)

    @cached_property
    def _stub(self) -> Any:
        return service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    @cached_property
    def _http(self) -> urllib3.HTTPConnectionPool:
        host, port = self.http_address.rsplit(":", 1)
        return urllib3.HTTPConnectionPool(host, int(port), maxsize=256, retries=False, timeout=self.timeout)

    def close(self) -> None:
        """Closes what was opened."""
        for name in ("_channel", "_http"):
            if opened := self.__dict__.pop(name, None):
                opened.close()
        self.__dict__.pop("_stub", None)

    def start(self, model: str, version: str, inputs: Arrays, request_id: str = "") -> Call:
        """Sends {input name: array in the model's dtype, batch first} to `version` ("" is the latest)."""
        request = service_pb2.ModelInferRequest(model_name=model, model_version=version, id=request_id)
        for name, array in inputs.items():
            datatype = np_to_triton_dtype(array.dtype)
            request.inputs.add(name=name, datatype=datatype, shape=array.shape)
            request.raw_input_contents.append(_to_raw(array))
        return Call(self._stub.ModelInfer.future(request, timeout=self.timeout))

    def forward(self, model: str, version: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        """A KServe v2 body to Triton's HTTP endpoint, byte for byte, and its answer; raises a ServingError."""
        path = f"/v2/models/{quote(model, safe='')}{f'/versions/{version}' if version else ''}/infer"
        try:
            reply = self._http.request("POST", path, body=body, headers=dict(headers))
        except urllib3.exceptions.ReadTimeoutError as err:
            raise TritonTimeout(TOO_LATE) from err
        except (urllib3.exceptions.HTTPError, OSError) as err:
            raise TritonUnavailable(NOT_ANSWERING) from err
        if reply.status != 200:
            raise to_http_error(reply.status, reply.data)
        length = reply.headers.get("Inference-Header-Content-Length")
        return HttpReply(reply.data, None if length is None else int(length))

    def is_ready(self) -> bool:
        """Whether Triton says that it is ready; raises TritonUnavailable or TritonTimeout."""
        with _serving_errors():
            return bool(self._stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=PROBE_SECONDS).ready)

    def index(self) -> list[IndexEntry]:
        """Every version of every model that Triton knows."""
        with _serving_errors():
            reply = self._stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), timeout=PROBE_SECONDS)
        return [IndexEntry(m.name, m.version, m.state, m.reason) for m in reply.models]

    def config(self, model: str) -> Any:
        """The model's configuration as Triton completed it (the ModelConfig protobuf)."""
        request = service_pb2.ModelConfigRequest(name=model)
        with _serving_errors():
            return self._stub.ModelConfig(request, timeout=PROBE_SECONDS * 2).config


def datatype_name(data_type: int) -> str:
    """ModelConfig's enum in the protocol's spelling: TYPE_FP32 -> FP32, TYPE_STRING -> BYTES."""
    name = str(model_config_pb2.DataType.Name(data_type)).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def _to_raw(array: NDArray[Any]) -> bytes:
    if array.dtype == np.object_ or array.dtype.type in (np.bytes_, np.str_):
        serialized = serialize_byte_tensor(array)
        return bytes(serialized.item()) if serialized.size else b""
    return np.ascontiguousarray(array).tobytes()


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
