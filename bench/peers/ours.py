"""This project: `serve` with its defaults."""

import json
from urllib.parse import quote

from bench import workload
from bench.peers.context import Context, Start
from bench.repository import ROOT
from bench.workload import Request, Workload


def start(context: Context) -> Start:
    """Its models are named, for the repository may hold others."""
    variables = {
        "PORT": str(context.port),
        "SERVE_HOST": "127.0.0.1",
        "SERVE_MODEL_REPOSITORY": str(context.repository),
        "SERVE_LOAD_MODELS": ",".join(context.models),
        "SERVE_RUN_DIR": str(context.scratch / "run"),
    }
    return Start((str(context.python), str(ROOT / "serve")), variables)


def request(work: Workload) -> Request:
    """One instance goes raw, several as JSON, a tensor as KServe v2; the model is named in a header."""
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
    """Of a reply that is JSON; that of a tensor as rows."""
    found = json.loads(body)
    return list(found["predictions"]) if "predictions" in found else [[v] for v in found["outputs"][0]["data"]]
