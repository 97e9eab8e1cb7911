"""The servers to compare: how to start each, what request it takes, and its settings in words.

A peer is a row of PEERS. Each other front has a folder with its server and a requirements.lock, which
bench.environments installs into a separate environment. All serve the models in BENCH_REPOSITORY that BENCH_MODELS
names, on BENCH_PORT, by the engine that BENCH_ENGINE names, with as many threads as there are processors.

The fronts are there twice: with ONNX Runtime, as their tutorials have it, and with OpenVINO. infinity-emb, a front for
embeddings alone, is there with ONNX Runtime. This project is there with the engine that it takes by itself, and with
each engine that it is told to take.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import engines, workload
from bench.peers import ours, triton
from bench.peers.context import Context, Start
from bench.sessions import NAMES, ONNX_RUNTIME, OPENVINO
from bench.workload import Request, Workload

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Peer:
    """`start` gives the command and its variables, `ready` is a path that answers 200 once it is ready, `request` makes
    the request or None for work that it does not support, `environment` is the folder of its requirements. `engine` is
    what it is told to take, "" where `serve` chooses. `fields` are those of a prediction that it answers with, if not
    all."""

    name: str
    title: str
    settings: str
    start: Callable[[Context], Start]
    ready: str
    request: Callable[[Workload], Request | None]
    predictions: Callable[[bytes], list[object]]
    environment: str = ""
    engine: str = ""
    fields: tuple[str, ...] = ()

    def expected(self, predictions: Sequence[Any]) -> list[Any]:
        """What it should answer where the engine in process predicts these."""
        return [{name: each[name] for name in self.fields} for each in predictions] if self.fields else [*predictions]

    def engine_of(self, model: Path) -> str:
        """The engine that runs this model there."""
        return self.engine if self.environment else engines.taken(model, self.engine or "auto")

    def told(self, engine: str) -> "Peer":
        """The same server with that engine."""
        return replace(self, name=f"{self.name}-{engine}", title=f"{self.title}, {NAMES[engine]}", engine=engine)


def _module(name: str) -> Callable[[Context], Start]:
    return lambda context: Start((str(context.python), "-m", f"bench.peers.{name}.server"))


def _bentoml(context: Context) -> Start:
    program = context.python.with_name("bentoml")
    command = (str(program), "serve", "bench.peers.bentoml.server:Models", "-p", str(context.port))
    return Start(
        (*command, "--host", "127.0.0.1"), {"BENTOML_DO_NOT_TRACK": "true", "BENTOML_HOME": str(context.scratch)}
    )


def instances(work: Workload) -> Request | None:
    """{"instances": …} to /MODEL, for the three Python servers."""
    if work.binary:
        return None
    return Request(f"/{work.model}", json.dumps({"instances": workload.instances_json(work)}).encode(), JSON)


def _predictions(body: bytes) -> list[object]:
    found = json.loads(body)
    return list((found[0] if isinstance(found, list) else found)["predictions"])


def _mlserver(work: Workload) -> Request | None:
    """KServe v2; images are BYTES in base64, as MLServer's content types ask for."""
    path = f"/v2/models/{work.model}/infer"
    if work.binary:
        return None
    if work.tensor is not None:
        return Request(path, *workload.triton_http(work))
    texts = [b.decode() if work.media_type == "text/plain" else b64encode(b).decode() for b in work.instances]
    given = {"name": "instances", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}
    return Request(path, json.dumps({"inputs": [given]}).encode(), JSON)


def _infinity(work: Workload) -> Request | None:
    """OpenAI's form of a request for embeddings."""
    if work.media_type != "text/plain":
        return None
    given = {"model": work.model, "input": workload.instances_json(work)}
    return Request("/embeddings", json.dumps(given).encode(), JSON)


def _embeddings(body: bytes) -> list[object]:
    return list(json.loads(body)["data"])


def _kserve_predictions(body: bytes) -> list[object]:
    data = json.loads(body)["outputs"][0]["data"]
    return [json.loads(value) if isinstance(value, str) else [value] for value in data]


OURS = Peer(
    name="ours",
    title="this project",
    settings="`serve` with its defaults",
    start=ours.start,
    ready="/ping",
    request=ours.request,
    predictions=ours.predictions,
)
TRITON = (
    Peer(
        name="triton",
        title="Triton, HTTP",
        settings="images and texts: a BLS model on its python backend with our clients, 4 instances, in front of the "
        "same network, with the engine, the instances and the dynamic batching that `serve` gives it",
        start=triton.start,
        ready="/v2/health/ready",
        request=triton.request,
        predictions=triton.predictions,
    ),
    Peer(
        name="sagemaker",
        title="Triton, SageMaker endpoint",
        settings="tensors only",
        start=triton.start_sagemaker,
        ready="/ping",
        request=triton.request_sagemaker,
        predictions=triton.predictions,
    ),
)
GENERAL = (
    Peer(
        name="litserve",
        title="LitServe",
        settings="2 workers per model; embeddings: batches of up to 16, 2 ms",
        start=_module("litserve"),
        ready="/health",
        request=instances,
        predictions=_predictions,
        environment="litserve",
        engine=ONNX_RUNTIME,
    ),
    Peer(
        name="bentoml",
        title="BentoML",
        settings="2 workers; embeddings: adaptive batching of up to 16",
        start=_bentoml,
        ready="/readyz",
        request=instances,
        predictions=_predictions,
        environment="bentoml",
        engine=ONNX_RUNTIME,
    ),
    Peer(
        name="rayserve",
        title="Ray Serve",
        settings="2 replicas per model; embeddings: batches of up to 16, 2 ms",
        start=_module("rayserve"),
        ready="/-/healthz",
        request=instances,
        predictions=_predictions,
        environment="rayserve",
        engine=ONNX_RUNTIME,
    ),
    Peer(
        name="mlserver",
        title="MLServer",
        settings="2 parallel workers; embeddings: adaptive batching of up to 16, 2 ms",
        start=_module("mlserver"),
        ready="/v2/health/ready",
        request=_mlserver,
        predictions=_kserve_predictions,
        environment="mlserver",
        engine=ONNX_RUNTIME,
    ),
)
EMBEDDING = (
    Peer(
        name="infinity",
        title="infinity-emb",
        settings="embeddings only; `--engine optimum`, its dynamic batching of up to 32",
        start=_module("infinity"),
        ready="/health",
        request=_infinity,
        predictions=_embeddings,
        environment="infinity",
        engine=ONNX_RUNTIME,
        fields=("embedding",),
    ),
)
PEERS = (
    OURS,
    *(replace(OURS.told(engine), settings=f"`SERVE_CPU_ENGINE={engine}`") for engine in NAMES),
    *TRITON,
    *GENERAL,
    *EMBEDDING,
    *(front.told(OPENVINO) for front in GENERAL),
)
BY_NAME = {peer.name: peer for peer in PEERS}
