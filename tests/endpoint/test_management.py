"""Tests that SERVE_MANAGEMENT_SECRET protects loading, unloading and listing, and nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from serving.front.kserve import INDEX
from serving.settings.setting import SettingsError
from serving.settings.settings import Settings
from tests.support.harness import PATIENCE, Server, make_scale, tensor
from tests.support.streaming_models import make_reader, make_summer

pytestmark = pytest.mark.stack

KEY, SECRET = "X-Management-Key", "open=sesame 42"
TENSORS = {"inputs": [tensor([7])]}
LOADED = ("opaque", "words", "sums")
CLOSED = [
    ("GET", "/models"),
    ("POST", "/models"),
    ("GET", "/models/opaque"),
    ("DELETE", "/models/opaque"),
    ("GET", "/models/opaque/invoke"),
    ("DELETE", "/models/opaque/invoke"),
    ("HEAD", "/models"),
    ("POST", INDEX),
]


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start multi-model mode, where every management route exists, and load three archives."""
    folder = tmp_path_factory.mktemp("secret")
    for name, make in {"opaque": make_scale, "words": make_reader, "sums": make_summer}.items():
        make(folder / "models" / name / "model")
    (folder / "nothing").mkdir()
    server = Server(
        folder,
        folder / "nothing",
        SAGEMAKER_MULTI_MODEL="true",
        SERVE_KSERVE="true",
        SERVE_MODEL_REPOSITORY=str(folder / "models"),
        SERVE_MANAGEMENT_SECRET=f"{KEY}={SECRET}",
    ).wait_ready()
    for name in LOADED:
        load = {"model_name": name, "url": str(folder / "models" / name / "model")}
        assert server.post("/models", json=load, headers={KEY: SECRET}).status_code == 200
    yield server
    server.stop_later()


def call(server: Server, method: str, path: str, **headers: str | bytes) -> requests.Response:
    return server.ask(method, path, headers=headers)


def is_forbidden(reply: requests.Response) -> bool:
    return reply.status_code == 403 and reply.json()["code"] == "forbidden"


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_refuse_every_management_call_without_the_secret(
    secret: Server, method: str, path: str
) -> None:
    reply = call(secret, method, path)
    assert reply.status_code == 403
    assert method == "HEAD" or is_forbidden(reply)


def test_count_loads_and_unloads_by_result(secret: Server) -> None:
    def count(text: str) -> float:
        lines = secret.scrape().text.splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith(text))

    assert count('serve_model_loads_total{result="ok"}') == len(LOADED)
    before = count('serve_model_loads_total{result="invalid_request"}')
    assert secret.post("/models", json={}, headers={KEY: SECRET}).status_code == 400
    assert count('serve_model_loads_total{result="invalid_request"}') == before + 1
    before = count('serve_model_loads_total{result="forbidden"}')
    assert is_forbidden(call(secret, "POST", "/models"))
    assert count('serve_model_loads_total{result="forbidden"}') == before + 1
    assert call(secret, "DELETE", "/models/none", **{KEY: SECRET}).status_code == 404
    assert count('serve_model_unloads_total{result="model_not_loaded"}') == 1


@pytest.mark.parametrize(
    "path", ["/models?x=1", "/%6Dodels", "/./models", "//models", "/models/", "/x/../models"]
)
def test_guard_every_spelling_of_the_path(secret: Server, path: str) -> None:
    with requests.Session() as session:
        request = requests.Request("GET", secret.url).prepare()
        request.url = secret.url + path
        assert session.send(request, timeout=PATIENCE).status_code in (403, 404)


@pytest.mark.parametrize(
    "value",
    [
        "",
        SECRET[:-1],
        SECRET + "x",
        SECRET.upper(),
        f"{SECRET}, {SECRET}",
        "Zürich".encode("latin-1"),
        b"\xff\xfe",
    ],
)
def test_refuse_a_wrong_value(secret: Server, value: str | bytes) -> None:
    assert is_forbidden(call(secret, "GET", "/models", **{KEY: value}))


def test_index_the_models_that_callers_loaded(secret: Server) -> None:
    listed = secret.post(INDEX, json={"ready": True}, headers={KEY: SECRET}).json()
    assert {entry["name"] for entry in listed} == {*LOADED}
    assert all(entry["state"] == "READY" and entry["version"] for entry in listed)


@pytest.mark.parametrize("header", [KEY, KEY.lower(), KEY.upper()])
def test_accept_the_right_value(secret: Server, header: str) -> None:
    reply = call(secret, "GET", "/models", **{header: SECRET})
    assert reply.status_code == 200
    assert reply.json()["models"]


def test_refuse_the_header_spelled_with_underscores(secret: Server) -> None:
    assert is_forbidden(call(secret, "GET", "/models", **{KEY.replace("-", "_"): SECRET}))


def test_leave_inference_ping_and_metrics_open(secret: Server) -> None:
    assert secret.post("/models/opaque/invoke", json=TENSORS).json()["outputs"][0]["data"] == [21]
    reply = secret.post(json=TENSORS, headers={"X-Amzn-SageMaker-Target-Model": "opaque"})
    assert reply.json()["outputs"][0]["data"] == [21]
    assert secret.ping() == 200
    assert secret.get("/metrics").status_code == 200


def test_keep_the_secret_out_of_logs_and_errors(secret: Server) -> None:
    errors = [
        call(secret, "GET", "/models").text,
        call(secret, "GET", "/models", **{KEY: SECRET + "x"}).text,
    ]
    call(secret, "GET", "/models", **{KEY: SECRET})
    assert not [text for text in [*errors, secret.output()] if SECRET in text]
    assert not [file for file in secret.run_dir.rglob("*.conf") if SECRET in file.read_text()]


@pytest.mark.parametrize("secret", ["just-a-word-42", "=word-42", "X-Key-42=", "X-Key=wörd-42"])
def test_stop_the_start_on_an_invalid_secret_without_quoting_it(secret: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({"SERVE_MANAGEMENT_SECRET": secret})
    assert "SERVE_MANAGEMENT_SECRET" in str(caught.value) and secret not in str(caught.value)


def test_keep_the_secret_from_command_lines_and_models(secret: Server) -> None:
    """A model's code and its child processes can read their own environment. Other processes of the
    same user can read every command line."""
    triton = psutil.Process(secret.pid("tritonserver"))
    models = [triton, *triton.children(recursive=True)]
    assert len(models) > 1, "a model has a process of its own"
    for process in models:
        assert SECRET not in "".join(process.environ().values()), process
    for pid in secret.processes():
        assert SECRET not in " ".join(psutil.Process(pid).cmdline())


def test_stream_and_keep_sessions_with_an_archive(secret: Server, tmp_path: Path) -> None:
    awaited, lines = tmp_path / "go-on", {"Accept": "application/jsonlines"}
    body = {"text_input": f"a {awaited}"}
    reply = secret.post(
        "/models/words/invoke", json=body, headers={"Accept": "text/event-stream"}, stream=True
    )
    parts = (line for line in reply.iter_lines(chunk_size=1) if line)
    assert next(parts)
    awaited.touch()
    assert len(list(parts)) == 1
    reply = secret.post("/models/words/invoke", json={"instances": ["a b"]}, headers=lines)
    assert [json.loads(line)["predictions"] for line in reply.text.splitlines()] == [["a"], ["b"]]
    header = {"X-Amzn-SageMaker-Session-Id": "NEW_SESSION"}
    reply = secret.post("/models/sums/invoke", json={"instances": [1]}, headers=header)
    header = {"X-Amzn-SageMaker-Session-Id": reply.headers["X-Amzn-SageMaker-Session-Id"]}
    last = {"instances": [2], "parameters": {"sequence_end": True}}
    assert (
        secret.post("/models/sums/invoke", json=last, headers=header).json()["predictions"][0][
            "total"
        ]
        == 3
    )
