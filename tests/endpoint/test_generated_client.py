"""Tests that a client generated from /openapi.json by openapi-python-client gets the same answers
as plain calls."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from serving.headers import JSON_TYPE
from tests.support.digits import held_out
from tests.support.harness import PATIENCE, Server, encoded

pytestmark = pytest.mark.stack

PACKAGES = Path(sys.prefix) / "openapi"  # where `make dev` installs the generator
NAME = "generated_client"
TEXT = "A man is eating food."


@pytest.fixture(scope="module")
def models(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return the module with the generated classes. The generator must not leave out a schema or a
    body."""
    folder = tmp_path_factory.mktemp("generated")
    document = server.get("/openapi.json").json()
    bodies = document["paths"]["/invocations"]["post"]["requestBody"]["content"]
    # The generator supports only JSON and bytes, so the other media types are declared as bytes.
    as_bytes = dict.fromkeys(bodies.keys() - {JSON_TYPE}, "application/octet-stream")
    config = {"content_type_overrides": as_bytes, "http_timeout": int(PATIENCE), "post_hooks": []}
    (folder / "config.json").write_text(json.dumps(config))
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "openapi_python_client", "generate", "--meta=none", "--fail-on-warning"),
            f"--url={server.url}/openapi.json",
            "--config=config.json",
            f"--output-path={NAME}",
        ],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(PACKAGES), "COLUMNS": "1000"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"Generating {NAME}"]
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        generated = import_module(f"{NAME}.models")
        classes = {name.lower() for name in generated.__all__}
        schemas = {name.replace("_", "").lower() for name in document["components"]["schemas"]}
        assert schemas <= classes
        yield generated


def call(server: Server, operation: str, *path: str, **body: Any) -> Any:
    """Call an operation of the generated client, expect 200, and return the parsed reply."""
    client = import_module(NAME).Client(server.url, timeout=PATIENCE)
    reply = import_module(f"{NAME}.api.{operation}").sync_detailed(*path, client=client, **body)
    assert reply.status_code == 200, reply.content
    return reply.parsed


def invoke(server: Server, body: Any) -> Any:
    """Return the reply of /invocations to the generated body, equal to that of a plain call."""
    reply = call(server, "models.post_invocations", body=body).to_dict()
    assert reply == server.post(json=body.to_dict()).json()
    return reply


def test_embed_a_text(server: Server, models: Any) -> None:
    parameters = models.TextParametersType0(dimensions=8)
    body = models.Text(model_name="bert", instances=[TEXT], parameters=parameters)
    assert len(invoke(server, body)["predictions"][0]["embedding"]) == 8


def test_classify_an_image(server: Server, models: Any) -> None:
    image, label = held_out(1)[0]
    instance = models.ImageClassificationInstancesItem(base64.b64encode(encoded(image)).decode())
    parameters = models.ImageClassificationParametersType0(top_k=1)
    body = models.ImageClassification(
        model_name="resnet", instances=[instance], parameters=parameters
    )
    (best,) = invoke(server, body)["predictions"][0]["classes"]
    assert best["label"] == str(label)


def test_send_tensors(server: Server, models: Any) -> None:
    sent = models.Input("x", [1, 2], models.InputDatatype.FP32, [1.5, 2.5])
    asked = {"model_name": "scale", "model_version": 1}
    reply = invoke(server, models.Tensors([sent], **asked))
    assert reply["outputs"][0]["data"] == [3.0, 5.0]
    assert call(server, "kserve.post_v2_models_name_infer", "scale", body=models.Tensors([sent]))[
        "outputs"
    ][0]["data"] == [4.5, 7.5]
    versioned = models.PostV2ModelsNameVersionsVersionInferBody([sent])
    operation = "kserve.post_v2_models_name_versions_version_infer"
    assert call(server, operation, "scale", "1", body=versioned).to_dict() == reply


def test_generate_and_stream(server: Server, models: Any) -> None:
    body = models.Flat()
    body["x"] = [1.5]
    plain = server.post("/v2/models/scale/generate", json=body.to_dict()).json()
    assert plain["y"] == 4.5
    operation = "kserve.post_v2_models_name_generate"
    assert call(server, operation, "scale", body=body).to_dict() == plain
    events = call(server, f"{operation}_stream", "scale", body=body)
    assert json.loads(events.removeprefix("data: ")) == plain


def test_read_the_models_and_their_versions(server: Server, models: Any) -> None:
    listed = call(server, "models.get_models").to_dict()
    assert listed == server.get("/models").json()
    assert call(server, "models.get_openapi_json").to_dict() == server.get("/openapi.json").json()
    assert "serve_in_flight" in call(server, "operations.get_metrics")
    limits = call(server, "operations.get_execution_parameters").to_dict()
    assert limits == server.get("/execution-parameters").json()
    for operation in ("operations.get_ping", "operations.post_ping"):
        assert call(server, operation) is None
