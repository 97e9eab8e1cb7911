"""SERVE_MANAGEMENT closes loading, unloading and listing, and nothing else."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from serving.errors import Forbidden
from serving.front.management import Management, is_management
from serving.settings.row import SettingsError
from serving.settings.table import Settings
from tests.support.harness import PATIENCE, ROOT, Server, make_scale

KEY, SECRET = "X-Management-Key", "open=sesame 42"
TENSORS = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [7]}]}
CLOSED = [
    ("GET", "/models"),
    ("POST", "/models"),
    ("GET", "/models/opaque"),
    ("DELETE", "/models/opaque"),
    ("GET", "/models/opaque/invoke"),
    ("DELETE", "/models/opaque/invoke"),
    ("HEAD", "/models"),
]


@contextmanager
def serving(folder: Path, repository: Path, **variables: str) -> Iterator[Server]:
    server = Server(folder, repository, **variables).wait_ready()
    try:
        yield server
    finally:
        assert server.stop() == 0


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """In multi-model mode, where every management route exists; `opaque` is loaded."""
    folder = tmp_path_factory.mktemp("secret")
    make_scale(folder / "models/abc/model")
    (folder / "nothing").mkdir()
    with serving(
        folder,
        folder / "nothing",
        SAGEMAKER_MULTI_MODEL="true",
        SERVE_MODELS_ROOT=str(folder / "models"),
        SERVE_MANAGEMENT="secret",
        SERVE_MANAGEMENT_SECRET=f"{KEY}={SECRET}",
    ) as server:
        load = {"model_name": "opaque", "url": str(folder / "models/abc/model")}
        assert server.post("/models", json=load, headers={KEY: SECRET}).status_code == 200
        yield server


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("loopback")
    make_scale(folder / "repository")
    with serving(folder, folder / "repository", SERVE_MANAGEMENT="loopback") as server:
        yield server


def call(server: Server, method: str, path: str, **headers: str | bytes) -> requests.Response:
    return server.ask(method, path, headers=headers)


def is_forbidden(reply: requests.Response) -> bool:
    return reply.status_code == 403 and reply.json()["code"] == "forbidden"


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_without_the_secret_every_management_call_is_refused(secret: Server, method: str, path: str) -> None:
    reply = call(secret, method, path)
    assert reply.status_code == 403
    assert method == "HEAD" or is_forbidden(reply)


def test_loads_and_unloads_are_counted_with_what_became_of_them(secret: Server) -> None:
    def count(text: str) -> float:
        lines = secret.get("/metrics").text.splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith(text))

    assert count('serve_model_loads_total{result="ok"}') == 1
    before = count('serve_model_loads_total{result="invalid_request"}')
    assert secret.post("/models", json={}, headers={KEY: SECRET}).status_code == 400
    assert count('serve_model_loads_total{result="invalid_request"}') == before + 1
    assert call(secret, "DELETE", "/models/none", **{KEY: SECRET}).status_code == 404
    assert count('serve_model_unloads_total{result="model_not_loaded"}') == 1


@pytest.mark.parametrize("path", ["/models?x=1", "/%6Dodels", "/./models", "//models", "/models/", "/x/../models"])
def test_no_spelling_of_the_path_gets_around_it(secret: Server, path: str) -> None:
    with requests.Session() as session:
        request = requests.Request("GET", secret.url).prepare()
        request.url = secret.url + path
        assert session.send(request, timeout=PATIENCE).status_code in (403, 404)


@pytest.mark.parametrize(
    "value",
    ["", SECRET[:-1], SECRET + "x", SECRET.upper(), f"{SECRET}, {SECRET}", "Zürich".encode("latin-1"), b"\xff\xfe"],
)
def test_a_wrong_value_is_refused(secret: Server, value: str | bytes) -> None:
    assert is_forbidden(call(secret, "GET", "/models", **{KEY: value}))


@pytest.mark.parametrize("header", [KEY, KEY.lower(), KEY.upper()])
def test_the_right_value_opens(secret: Server, header: str) -> None:
    reply = call(secret, "GET", "/models", **{header: SECRET})
    assert reply.status_code == 200
    assert reply.json()["models"]


def test_a_header_with_underscores_is_another_header(secret: Server) -> None:
    assert is_forbidden(call(secret, "GET", "/models", **{KEY.replace("-", "_"): SECRET}))


def test_inference_ping_and_metrics_stay_open(secret: Server) -> None:
    assert secret.post("/models/opaque/invoke", json=TENSORS).json()["outputs"][0]["data"] == [21]
    reply = secret.post(json=TENSORS, headers={"X-Amzn-SageMaker-Target-Model": "opaque"})
    assert reply.json()["outputs"][0]["data"] == [21]
    assert secret.ping() == 200
    assert secret.get("/metrics").status_code == 200


def test_the_secret_is_in_no_log_and_in_no_error(secret: Server) -> None:
    errors = [call(secret, "GET", "/models").text, call(secret, "GET", "/models", **{KEY: SECRET + "x"}).text]
    call(secret, "GET", "/models", **{KEY: SECRET})
    assert not [text for text in [*errors, secret.output()] if SECRET in text]
    assert not [file for file in secret.run_dir.rglob("*.conf") if SECRET in file.read_text()]


def test_from_loopback_everything_is_open(loopback: Server) -> None:
    assert call(loopback, "GET", "/models").status_code == 200


@pytest.mark.parametrize("forged", ["X-Real-IP", "x-real-ip", "X_Real_IP", "X-Forwarded-For", "Forwarded"])
def test_what_a_caller_says_of_its_address_is_not_heard(loopback: Server, forged: str) -> None:
    """So a caller from elsewhere cannot say that it is here."""
    assert call(loopback, "GET", "/models", **{forged: "203.0.113.9"}).status_code == 200


@pytest.mark.parametrize("peer", ["203.0.113.9", ""])
def test_behind_nginx_its_word_for_the_peer_decides(loopback: Server, peer: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(loopback.run_dir / "gunicorn.sock"))
        line = f"X-Real-IP: {peer}\r\n" if peer else ""
        connection.sendall(f"GET /models HTTP/1.1\r\nHost: x\r\n{line}Connection: close\r\n\r\n".encode())
        reply = connection.makefile("rb").read()
    assert reply.startswith(b"HTTP/1.1 403 ")
    assert b'"code":"forbidden"' in reply


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_these_addresses_are_loopback(peer: str) -> None:
    Management("loopback").check(lambda _: None, peer)


@pytest.mark.parametrize(
    "peer", ["", "10.0.0.1", "::2", "::ffff:10.0.0.1", "localhost", "127.0.0.1, 10.0.0.1", "unix:"]
)
def test_these_are_not(peer: str) -> None:
    with pytest.raises(Forbidden):
        Management("loopback").check(lambda _: None, peer)


def test_which_routes_are_management() -> None:
    closed = ["/models", "/models/<name>", "/models/<path:name>", "/models/<name>/anything"]
    assert all(is_management(rule) for rule in closed)
    open_to_all = ["/models/<name>/invoke", "/invocations", "/ping", "/metrics", "/execution-parameters", "/modelsx"]
    assert not any(is_management(rule) for rule in open_to_all)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"SERVE_MANAGEMENT": "secret"}, "SERVE_MANAGEMENT=secret needs SERVE_MANAGEMENT_SECRET=HEADER=VALUE"),
        ({"SERVE_MANAGEMENT_SECRET": f"{KEY}={SECRET}"}, "SERVE_MANAGEMENT=open does not ask for it"),
        ({"SERVE_MANAGEMENT": "loopback", "SERVE_MANAGEMENT_SECRET": f"{KEY}={SECRET}"}, "SERVE_MANAGEMENT=loopback"),
        ({"SERVE_MANAGEMENT": "secret", "SERVE_MANAGEMENT_SECRET": "just-a-word-42"}, "must be HEADER=VALUE"),
        ({"SERVE_MANAGEMENT": "secret", "SERVE_MANAGEMENT_SECRET": "=word-42"}, "must be HEADER=VALUE"),
        ({"SERVE_MANAGEMENT": "secret", "SERVE_MANAGEMENT_SECRET": "X-Key="}, "must be HEADER=VALUE"),
        ({"SERVE_MANAGEMENT": "secret", "SERVE_MANAGEMENT_SECRET": "X-Key=wörd-42"}, "must be HEADER=VALUE"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_without_telling_the_secret(
    environ: dict[str, str], named: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env(environ)
    assert named in str(caught.value)
    assert "42" not in str(caught.value)


def test_serve_does_not_start_with_them() -> None:
    command = [sys.executable, str(ROOT / "serve")]
    done = subprocess.run(
        command, env={"SERVE_MANAGEMENT": "secret"}, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "SERVE_MANAGEMENT=secret needs SERVE_MANAGEMENT_SECRET=HEADER=VALUE, which is not set\n"
