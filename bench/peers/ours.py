"""This project: `serve` with its defaults, or told which engine to take."""

import json
from urllib.parse import quote

from bench import workload
from bench.peers.context import Context, Start
from bench.repository import ROOT
from bench.workload import Request, Workload


def start(context: Context) -> Start:
    """Names its models, because the repository may hold others."""
    variables = {
        "PORT": str(context.port),
        "SERVE_HOST": "127.0.0.1",
        "SERVE_MODEL_REPOSITORY": str(context.repository),
        "SERVE_LOAD_MODELS": ",".join(context.models),
        "SERVE_RUN_DIR": str(context.scratch / "run"),
        "SERVE_ENGINE_CACHE": str(context.scratch.parent / "engines"),  # so that a run's first start compiles
        **({"SERVE_CPU_ENGINE": context.engine} if context.engine else {}),
    }
    return Start((str(context.python), str(ROOT / "serve")), variables)


def request(work: Workload) -> Request:
    """One instance is sent raw, several as JSON, a tensor as KServe v2; a header names the model."""
    named = {"X-Amzn-SageMaker-Target-Model": work.model}
    path = f"/invocations?model_name={quote(work.model)}"
    if work.tensor is not None:
        body, headers = workload.sagemaker(work)
        return Request("/invocations", body, headers | named)
    if len(work.instances) == 1:
        return Request(path, work.instances[0], {"Content-Type": work.media_type})
    body = json.dumps({"instances": workload.instances_json(work)}).encode()
    return Request(path, body, {"Content-Type": "application/json"})


def predictions(body: bytes) -> list[object]:
    """The predictions of a JSON reply; for a tensor, its rows."""
    found = json.loads(body)
    return list(found["predictions"]) if "predictions" in found else [[v] for v in found["outputs"][0]["data"]]
