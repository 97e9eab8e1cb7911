"""The servers to compare: how to start each, what request it takes, and its settings in words.

A peer is a row of PEERS. Each peer but ours has a folder with its server and a requirements.lock, which
bench.environments installs into a separate environment. All serve the models in BENCH_REPOSITORY that BENCH_MODELS
names, on BENCH_PORT. Their sessions have as many threads as there are processors, and the threads do not spin.
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
    """`start` gives the command and its variables, `ready` is a path that answers 200 once it is ready, `request` makes
    the request or None for work that it does not support, `environment` is the folder of its requirements."""

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


def _kserve_predictions(body: bytes) -> list[object]:
    data = json.loads(body)["outputs"][0]["data"]
    return [json.loads(value) if isinstance(value, str) else [value] for value in data]


PEERS = (
    Peer(
        name="ours",
        title="this project",
        settings="`serve` with its defaults",
        start=ours.start,
        ready="/ping",
        request=ours.request,
        predictions=ours.predictions,
    ),
    Peer(
        name="triton",
        title="Triton, HTTP",
        settings="images and texts: a BLS model on its python backend with our clients, 4 instances, in front of the "
        "same network, with the instances and the dynamic batching of our config.pbtxt",
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
    Peer(
        name="litserve",
        title="LitServe",
        settings="2 workers per model; embeddings: batches of up to 16, 2 ms",
        start=_module("litserve"),
        ready="/health",
        request=instances,
        predictions=_predictions,
        environment="litserve",
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
    ),
)
BY_NAME = {peer.name: peer for peer in PEERS}
