"""The gateway itself."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from urllib.parse import quote

import grpc
import orjson
import urllib3
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.errors import InferenceFailed, InvalidRequest, ModelNotReady, TritonUnavailable
from serving.inference.deadline import left
from serving.inference.timings import stage
from serving.settings.triton_access import SECRET_KEY
from serving.triton.calls import Call, RepositoryCall, Responses
from serving.triton.errors import http_errors, never_sent, serving_errors, to_http_error, without_trace
from serving.triton.shared_memory import SharedMemory
from serving.triton.tensors import Arrays, Parameters, RawTensor, Regions, add_region, infer_request, raw_tensors

CONNECT_SECONDS = 0.5  # more than the longest pause between two attempts to connect
METRICS_SECONDS = 1.0  # a scraper waits for 2
PROBE_SECONDS = 0.7  # for readiness calls: two of them fit into /ping's 2 s
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),  # a Triton that was started again is found at once
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True)
class IndexEntry:
    """One version of a model in Triton's repository index; `state` is READY, LOADING, UNLOADING, UNAVAILABLE."""

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True)
class HttpReply:
    """What Triton's HTTP endpoint answered; `header_length` is the JSON part's when outputs are binary."""

    body: bytes
    header_length: int | None


class TritonGateway:
    """Calls to one tritonserver; safe to share between threads.

    The addresses are "host:port"; `timeout` and `stream_timeout` are the deadlines of an inference and of a
    stream of responses in seconds, where less is left of the request's time that. `secret`
    is what a Triton asks for whose gRPC others can reach too. Large inputs go through files of /dev/shm whose names
    begin with `shared_prefix`, `shared_limit` bytes of them at most.
    """

    def __init__(
        self,
        grpc_address: str,
        http_address: str,
        timeout: float,
        metrics_address: str = "",
        stream_timeout: float = 480.0,
        sagemaker_address: str = "",
        secret: str = "",
        shared_prefix: str = "",
        shared_limit: int = 0,
    ) -> None:
        self.grpc_address, self.http_address, self.timeout = grpc_address, http_address, timeout
        self.stream_timeout = stream_timeout
        self.metrics_address = metrics_address
        self.sagemaker_address = sagemaker_address
        self._metadata = [(f"triton-grpc-protocol-{SECRET_KEY}", secret)] if secret else []
        self.shared_memory = SharedMemory(shared_prefix, shared_limit, self._register)

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

    def connected(self, call: Callable[[], Any], again: Callable[[], Any]) -> Any:
        """`call`, and `again` when it could not be sent: after an attempt to connect that failed gRPC pauses and
        fails all calls meanwhile, though Triton may just have come up. Raises a ServingError."""
        with serving_errors():
            try:
                return call()
            except grpc.RpcError as err:
                if not never_sent(err):
                    raise
            with contextlib.suppress(grpc.FutureTimeoutError):
                grpc.channel_ready_future(self._channel).result(timeout=CONNECT_SECONDS)
            return again()

    def _probe(self, method: str, request: Any, timeout: float = PROBE_SECONDS) -> Any:
        """A quick call that is not an inference."""
        call = partial(getattr(self._stub, method), request, timeout=timeout, metadata=self._metadata)
        return self.connected(call, call)

    def close(self) -> None:
        """Closes what was opened."""
        for name in ("_channel", "_http"):
            if opened := self.__dict__.pop(name, None):
                opened.close()
        self.__dict__.pop("_stub", None)

    @stage("triton")
    def call(
        self, model: str, version: str, inputs: Arrays, request_id: str = "", parameters: Parameters | None = None
    ) -> Call:
        """A call with {input name: array in the model's dtype, batch first} to `version` ("" is the latest)."""

        def build(regions: Regions) -> Any:
            small = {name: array for name, array in inputs.items() if name not in regions}
            request = infer_request(model, version, raw_tensors(small), request_id, parameters or {})
            for name, region in regions.items():
                add_region(request, name, inputs[name], region)
            return request

        return Call(self, self._stub.ModelInfer, build, self.shared_memory.write(inputs))

    def _register(self, name: str, size: int) -> None:
        """Has Triton map a file of /dev/shm."""
        request = service_pb2.SystemSharedMemoryRegisterRequest(name=name, key=f"/{name}", byte_size=size)
        self._probe("SystemSharedMemoryRegister", request)

    def stream(
        self,
        model: str,
        version: str,
        inputs: Sequence[RawTensor],
        request_id: str = "",
        parameters: Parameters | None = None,
        outputs: Sequence[str] = (),
    ) -> Responses:
        """The same for a model that gives any number of responses; no `outputs` means all of them."""
        request = infer_request(model, version, inputs, request_id, parameters or {})
        for name in outputs:
            request.outputs.add(name=name)
        # The stream of requests ends after this one, so that of the responses ends after its last.
        return Responses(self, lambda: self._stub.ModelStreamInfer(iter([request]), timeout=left(self.stream_timeout)))

    @stage("triton")
    def forward(self, model: str, version: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        """A KServe v2 body to Triton's HTTP endpoint, byte for byte, and its answer; raises a ServingError."""
        path = f"/v2/models/{quote(model, safe='')}{f'/versions/{version}' if version else ''}/infer"
        seconds = left(self.timeout)
        with http_errors():
            reply = self._http.request("POST", path, body=body, headers=dict(headers), timeout=seconds)
        if reply.status != 200:
            raise to_http_error(reply.status, reply.data)
        length = reply.headers.get("Inference-Header-Content-Length")
        return HttpReply(reply.data, None if length is None else int(length))

    def metrics(self) -> bytes:
        """Triton's own metrics in Prometheus' text format; raises TritonUnavailable or TritonTimeout."""
        url = f"http://{self.metrics_address}/metrics"
        with http_errors():
            reply = urllib3.request("GET", url, timeout=METRICS_SECONDS, retries=False)
        if reply.status != 200:
            raise TritonUnavailable(f"Triton's metrics port answered {reply.status}")
        return reply.data

    def is_live(self) -> bool:
        """Whether Triton says that it is live; raises TritonUnavailable or TritonTimeout."""
        return bool(self._probe("ServerLive", service_pb2.ServerLiveRequest()).live)

    def is_model_ready(self, model: str, version: str = "") -> bool:
        """Whether it is loaded, "" any version of it."""
        try:
            return bool(self._probe("ModelReady", service_pb2.ModelReadyRequest(name=model, version=version)).ready)
        except (InvalidRequest, ModelNotReady, InferenceFailed):  # how Triton says that it knows no such model
            return False

    def load_repository(self, identifier: str, url: str, model: str, timeout: float) -> "RepositoryCall":
        """Has Triton's SageMaker endpoint register the repository at `url` and load its model, as `model`."""
        body = orjson.dumps({"model_name": identifier, "url": url})
        return RepositoryCall(self.sagemaker_address, "POST", "/models", body, model, timeout)

    def unload_repository(self, identifier: str, model: str, timeout: float) -> "RepositoryCall":
        """Has Triton's SageMaker endpoint unload the model, and forget its repository."""
        return RepositoryCall(self.sagemaker_address, "DELETE", f"/models/{identifier}", None, model, timeout)

    def unload(self, model: str) -> None:
        """Has Triton begin to unload a model, and its parts; `index` says when it has ended."""
        request = service_pb2.RepositoryModelUnloadRequest(model_name=model)
        request.parameters["unload_dependents"].bool_param = True
        self._probe("RepositoryModelUnload", request, self.timeout)

    def is_ready(self) -> bool:
        """Whether Triton says that it is ready; raises TritonUnavailable or TritonTimeout."""
        return bool(self._probe("ServerReady", service_pb2.ServerReadyRequest()).ready)

    def index(self) -> list[IndexEntry]:
        """Every version of every model that Triton knows."""
        reply = self._probe("RepositoryIndex", service_pb2.RepositoryIndexRequest())
        return [IndexEntry(m.name, m.version, m.state, without_trace(m.reason)) for m in reply.models]

    def config(self, model: str) -> Any:
        """The model's configuration as Triton completed it (the ModelConfig protobuf)."""
        request = service_pb2.ModelConfigRequest(name=model)
        return self._probe("ModelConfig", request, PROBE_SECONDS * 2).config
