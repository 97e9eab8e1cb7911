"""The servers that are compared: how each is started, what it is asked, and its settings in words.

A peer is a row of PEERS; one that is not ours has a folder here with its server and a requirements.lock, which
bench.environments installs into an environment of its own. All serve the models of BENCH_REPOSITORY that
BENCH_MODELS names, on BENCH_PORT, with sessions of as many threads as there are processors, which do not spin.
"""

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass

from bench import workload
from bench.peers import ours, triton
from bench.peers.context import Context, Start
from bench.workload import Request, Workload

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Peer:
    """`start` gives its command and variables, `ready` is a path that answers 200 when it is; `request` makes
    what it is asked, None where it does not take that. `environment` is the folder of its requirements."""

    name: str
    title: str
    settings: str
    start: Callable[[Context], Start]
    ready: str
    request: Callable[[Workload], Request | None]
    predictions: Callable[[bytes], list[object]]
    environment: str = ""


def _module(name: str) -> Callable[[Context], Start]:
    return lambda context: Start((str(context.python), "-m", f"bench.peers.{name}.server"))


def _bentoml(context: Context) -> Start:
    program = context.python.with_name("bentoml")
    command = (str(program), "serve", "bench.peers.bentoml.server:Models", "-p", str(context.port))
    return Start(
        (*command, "--host", "127.0.0.1"), {"BENTOML_DO_NOT_TRACK": "true", "BENTOML_HOME": str(context.scratch)}
    )


def instances(work: Workload) -> Request | None:
    """{"instances": …} to /MODEL, which the three Python servers take here."""
    if work.binary:
        return None
    return Request(f"/{work.model}", json.dumps({"instances": workload.instances_json(work)}).encode(), JSON)


def _predictions(body: bytes) -> list[object]:
    found = json.loads(body)
    return list((found[0] if isinstance(found, list) else found)["predictions"])


def _mlserver(work: Workload) -> Request | None:
    """KServe v2; images as BYTES in base64, as its content types have them."""
    path = f"/v2/models/{work.model}/infer"
    if work.binary:
        return None
    if work.tensor is not None:
        return Request(path, *workload.triton_http(work))
    texts = [b.decode() if work.media_type == "text/plain" else b64encode(b).decode() for b in work.instances]
    given = {"name": "instances", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}
    return Request(path, json.dumps({"inputs": [given]}).encode(), JSON)


def _kserve_predictions(body: bytes) -> list[object]:
    data = json.loads(body)["outputs"][0]["data"]
    return [json.loads(value) if isinstance(value, str) else [value] for value in data]


PEERS = (
    Peer(
        "ours", "this project", "`serve` as it comes: all defaults", ours.start, "/ping", ours.request, ours.predictions
    ),
    Peer(
        "triton",
        "Triton, HTTP",
        "images and texts: a BLS model of its python backend with our clients, 4 instances, before the same "
        "network, whose instances and dynamic batching are those of our config.pbtxt",
        triton.start,
        "/v2/health/ready",
        triton.request,
        triton.predictions,
    ),
    Peer(
        "sagemaker",
        "Triton, SageMaker endpoint",
        "tensors only: it takes nothing else",
        triton.start_sagemaker,
        "/ping",
        triton.request_sagemaker,
        triton.predictions,
    ),
    Peer(
        "litserve",
        "LitServe",
        "2 workers per model; embeddings: batches of up to 16, 2 ms",
        _module("litserve"),
        "/health",
        instances,
        _predictions,
        "litserve",
    ),
    Peer(
        "bentoml",
        "BentoML",
        "2 workers; embeddings: adaptive batching of up to 16",
        _bentoml,
        "/readyz",
        instances,
        _predictions,
        "bentoml",
    ),
    Peer(
        "rayserve",
        "Ray Serve",
        "2 replicas per model; embeddings: batches of up to 16, 2 ms",
        _module("rayserve"),
        "/-/healthz",
        instances,
        _predictions,
        "rayserve",
    ),
    Peer(
        "mlserver",
        "MLServer",
        "2 parallel workers; embeddings: adaptive batching of up to 16, 2 ms",
        _module("mlserver"),
        "/v2/health/ready",
        _mlserver,
        _kserve_predictions,
        "mlserver",
    ),
)
BY_NAME = {peer.name: peer for peer in PEERS}
