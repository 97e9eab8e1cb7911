"""Triton alone, with the tritonserver and the backends that this project installs."""

import json
import os
import secrets
import shutil
from pathlib import Path

from bench import engines, workload
from bench.peers.context import Context, Start
from bench.repository import ROOT
from bench.workload import Request, Workload
from serving.host import tritonserver
from serving.repository.layout import folders_in
from serving.repository.links import arrange
from serving.repository.model_config import written

FRONTS = 4
CONFIG = """\
backend: "python"
max_batch_size: 0
input {{ name: "body" data_type: TYPE_STRING dims: [ -1 ] }}
output {{ name: "predictions" data_type: TYPE_STRING dims: [ -1 ] }}
instance_group {{ kind: KIND_CPU count: {count} }}
parameters {{ key: "root" value: {{ string_value: "{root}" }} }}
parameters {{ key: "network" value: {{ string_value: "{network}" }} }}
parameters {{ key: "subject" value: {{ string_value: "{subject}" }} }}
"""


def start(context: Context) -> Start:
    """Its HTTP endpoint, with a front model for each network that has a client."""
    fronts, whole = context.scratch / "fronts", context.scratch / "whole"
    shutil.rmtree(whole, ignore_errors=True)
    arrange(context.repository, whole, _whole_configs(context.repository))
    served = [*context.models, *(_front(context, name, fronts) for name in context.models if name != "mean")]
    options = [
        f"--model-repository={whole}",
        f"--model-repository={fronts}",
        "--http-address=127.0.0.1",
        f"--http-port={context.port}",
        "--allow-grpc=false",
        "--allow-metrics=false",
        *(f"--load-model={name}" for name in served),
    ]
    fronts.mkdir(parents=True, exist_ok=True)
    return _start(options)


def _whole_configs(repository: Path) -> dict[str, str]:
    """Triton neither merges configs/cpu.pbtxt nor chooses an engine, so it gets what `serve` would give it."""
    return {str(folder): written(engines.config_of(folder)[0]) for folder in folders_in(repository)}


def start_sagemaker(context: Context) -> Start:
    """Its SageMaker endpoint as NVIDIA's image starts it, `mean` the default model."""
    options = [
        f"--model-repository={context.repository}",
        "--allow-sagemaker=true",
        f"--sagemaker-port={context.port}",
        "--allow-http=false",
        "--allow-grpc=false",
        "--allow-metrics=false",
        "--load-model=mean",
    ]
    return _start(options, context.port, SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="mean")


def start_multi_model(context: Context) -> Start:
    """Its SageMaker endpoint in multi-model mode, without models; archives lie in the context's repository."""
    empty = context.scratch / "empty"
    empty.mkdir()
    options = [
        f"--model-repository={empty}",
        "--allow-sagemaker=true",
        f"--sagemaker-port={context.port}",
        "--allow-http=false",
        "--allow-grpc=false",
        "--allow-metrics=false",
        "--model-namespacing=true",
    ]
    return _start(options, context.port, SAGEMAKER_MULTI_MODEL="true")


def _start(options: list[str], port: int = 0, **variables: str) -> Start:
    prefix = f"bench-{secrets.token_hex(4)}"
    command = [
        str(tritonserver.binary()),
        f"--backend-directory={tritonserver.backend_directory()}",
        "--model-config-name=cpu",
        "--model-control-mode=explicit",
        *(f"--backend-config={name},shm-region-prefix-name={prefix}" for name in ("python", "onnxruntime", "openvino")),
        *options,
    ]
    environ = tritonserver.environment(os.environ)
    if port:
        environ = tritonserver.on_loopback(environ, port)
    return Start(tuple(command), environ | variables, f"{prefix}*")


def _front(context: Context, network: str, folder: Path) -> str:
    """Writes the model that takes images or texts for a network; its name."""
    name = f"{network}_front"
    (folder / name / "1").mkdir(parents=True, exist_ok=True)
    code = (Path(__file__).parent / "model.py").read_text()
    (folder / name / "1" / "model.py").write_text(code)
    subject = context.repository / network / "subject.json"
    text = CONFIG.format(count=FRONTS, root=ROOT, network=network, subject=subject)
    (folder / name / "config.pbtxt").write_text(text)
    return name


def request(work: Workload) -> Request:
    """Images and texts as bytes to the front model, a tensor to the network itself."""
    if work.tensor is not None:
        return Request(f"/v2/models/{work.model}/infer", *workload.triton_http(work))
    blob = b"".join(len(body).to_bytes(4, "little") + body for body in work.instances)
    given = {
        "name": "body",
        "shape": [len(work.instances)],
        "datatype": "BYTES",
        "parameters": {"binary_data_size": len(blob)},
    }
    header = json.dumps({"inputs": [given]}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(header))}
    return Request(f"/v2/models/{work.model}_front/infer", header + blob, headers)


def request_sagemaker(work: Workload) -> Request | None:
    """Tensors; of images and texts nothing."""
    return None if work.tensor is None else Request("/invocations", *workload.sagemaker(work))


def predictions(body: bytes) -> list[object]:
    """Rows of a tensor, or what the front model has put into JSON."""
    data = json.loads(body)["outputs"][0]["data"]
    return [json.loads(value) if isinstance(value, str) else [value] for value in data]
