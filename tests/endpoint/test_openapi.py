"""/openapi.json is true: schemathesis finds nothing, and a client that a stock generator writes calls every model."""

import base64
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from serving.front.openapi.fixed import OF_NGINX
from tests.endpoint import schemathesis_hooks as hooks
from tests.support.harness import FP32, PATIENCE, ROOT, Server, link_model
from tests.support.readme import commands

BIN = Path(sys.executable).parent
BUNDLED = ("bert", "efficientnet", "resnet", "yolov4_tiny", "yolov5")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The bundled models alone, as docs/openapi.json has them."""
    repository = tmp_path_factory.mktemp("repository")
    for name in BUNDLED:
        link_model(ROOT / "model_repository" / name, repository)
    running = Server(tmp_path_factory.mktemp("serve"), repository, SERVE_PAGE="true", **FP32).wait_ready()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def document(server: Server) -> Any:
    return server.get("/openapi.json").json()


def test_it_is_openapi(document: Any) -> None:
    assert document["openapi"].startswith("3.1")
    validate(document)


def test_the_copy_in_docs_is_the_servers(document: Any) -> None:
    copy = json.loads((ROOT / "docs/openapi.json").read_text())
    assert without_figures(copy) == without_figures(document), "python -m tests.page writes it anew"


def without_figures(value: Any) -> Any:
    """Scores differ from machine to machine in their last digits, in the lines of an example too."""
    if isinstance(value, dict):
        return {key: without_figures(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_figures(each) for each in value]
    if isinstance(value, str):
        return re.sub(r"\d+\.\d{5,}(e-\d+)?", "0.0", value)
    return 0.0 if isinstance(value, float) else value


def test_each_model_has_an_example_and_a_reply_to_one(document: Any) -> None:
    operation = document["paths"]["/invocations"]["post"]
    asked = operation["requestBody"]["content"]["application/json"]["examples"]
    answered = operation["responses"]["200"]["content"]["application/json"]["examples"]
    assert answered.keys() == set(BUNDLED)
    assert asked.keys() == {*BUNDLED, "bert, tensors"}
    assert answered["bert"]["value"]["predictions"][0]["tokens"] > 4


PHOTO = {"model_name": "yolov5"}
NPY = {"model_name": "resnet"}
KINDS: dict[
    str, tuple[dict[str, str], str, bytes, str]
] = {  # query, Content-Type, body, Accept; the key is the reply's
    "application/jsonlines": ({"model_name": "bert"}, "application/x-ndjson", b'"one"\n"two"\n', "*/*"),
    "text/event-stream": ({"model_name": "bert"}, "text/plain", b"one", "text/event-stream"),
    "image/png": (PHOTO, "image/png", hooks.PICTURES[0], "image/png"),
    "application/x-npy": (NPY, "application/x-npy", hooks.npy(), "application/x-npy"),
    hooks.BINARY: (NPY, f"{hooks.BINARY};json-header-size=0", bytes(3 * 64 * 64), "*/*"),
    "application/json": (NPY, "application/x-npy", hooks.npy(), "*/*"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_body_and_reply_is_described(server: Server, document: Any, kind: str) -> None:
    query, taken, body, accept = KINDS[kind]
    reply = server.post(params=query, data=body, headers={"Content-Type": taken, "Accept": accept})
    assert reply.status_code == 200, reply.text
    assert reply.headers["Content-Type"].partition(";")[0] == kind
    operation = document["paths"]["/invocations"]["post"]
    assert taken.partition(";")[0] in operation["requestBody"]["content"]
    assert kind in operation["responses"]["200"]["content"]


def test_kserve_s_binary_tensors_are_described_with_their_header(server: Server, document: Any) -> None:
    path = "/v2/models/bert/infer"
    length, body = hooks.binary(outputs=True)
    reply = server.post(path, data=body, headers={hooks.LENGTH: str(length)})
    assert (reply.status_code, reply.headers["Content-Type"]) == (200, hooks.OCTETS)
    operation = document["paths"][path]["post"]
    assert hooks.OCTETS in operation["requestBody"]["content"]
    assert [each["name"] for each in operation["parameters"]] == [hooks.LENGTH]
    answer = operation["responses"]["200"]
    assert hooks.OCTETS in answer["content"]
    assert answer["headers"].keys() == {hooks.LENGTH} <= reply.headers.keys()


def test_the_codes_of_nginx_are_those_of_its_configuration() -> None:
    text = (ROOT / "nginx.conf").read_text()
    found = set(re.findall(r'return (\d+) .*?"code": "(\w+)"', text))
    assert found - {(status, code) for status, codes in OF_NGINX.items() for code in codes} <= AS_OTHERS


# nginx says of Triton, and of unknown routes, what Flask says too.
AS_OTHERS = {("404", "not_found"), ("503", "triton_unavailable")}


@pytest.mark.timeout(6 * PATIENCE)
def test_schemathesis_finds_nothing(server: Server, tmp_path: Path) -> None:
    """Tensors of pictures are left out: a body of them takes megabytes of JSON."""
    command = [str(BIN / "st"), "run", f"{server.url}/openapi.json", "--checks", "all", "--max-examples", "5"]
    command += [
        "--exclude-path-regex",
        "^/v2/models/(efficientnet|resnet|yolo)",
        "--no-color",
        "--generation-deterministic",
    ]
    command += ["--request-timeout", str(PATIENCE)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.endpoint.schemathesis_hooks"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=5 * PATIENCE)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def generated(document: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of the client's package, which can be imported."""
    folder = tmp_path_factory.mktemp("client")
    (folder / "openapi.json").write_text(json.dumps(document))
    (command,) = commands("The API", "docs/page.md")
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    subprocess.run(command, shell=True, cwd=folder, env=environ, check=True, capture_output=True, timeout=PATIENCE)
    sys.path.insert(0, str(folder))
    yield "written_client"
    sys.path.remove(str(folder))


def test_a_generated_client_calls_every_model(generated: str, server: Server) -> None:
    client = importlib.import_module(generated).Client(base_url=server.url, timeout=PATIENCE)
    call = importlib.import_module(f"{generated}.api.models.post_invocations").sync
    types = importlib.import_module(f"{generated}.models")

    def ask(request: Any, instance: Any, **parameters: Any) -> Any:
        name = re.sub(r"(Yolo)v(5)", r"\1v\2", request.__name__).removesuffix("Request").lower()
        body = request(model_name=name, instances=[instance])
        if parameters:
            kinds = importlib.import_module(f"{generated}.models")
            body.parameters = getattr(kinds, f"{request.__name__}ParametersType0")(**parameters)
        return call(client=client, body=body).predictions[0]

    def picture(name: str, file: str) -> Any:
        encoded = base64.b64encode((ROOT / "model_repository" / name / file).read_bytes()).decode()
        return getattr(types, f"{name.capitalize()}RequestInstancesItem")(b64=encoded)

    classes = ask(types.ResnetRequest, picture("resnet", "example.png"), top_k=2).classes
    assert [each.label for each in classes] == ["6", "0"]
    assert len(ask(types.Yolov5Request, picture("yolov5", "example.jpg"), confidence=0.5).detections) > 8
    assert len(ask(types.BertRequest, "A man is eating food.").embedding) == 384
