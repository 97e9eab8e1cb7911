"""The nginx configuration of docs/on-demand.md, before three servers with the same models."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import requests

from tests.model_lifecycle.test_on_demand import TARGET, answer, loaded, on_demand, pack
from tests.support.harness import PATIENCE, Server, expect_error, free_port, tensor, wait_until
from tests.support.readme import blocks
from tests.support.started import ends_with, kill

pytestmark = pytest.mark.stack

MODELS = 12  # that all of them have the same server has a chance of 1 to 177,147
ADDRESSES = [f"10.0.0.{number}:8080" for number in (1, 2, 3)]
WHOLE = """daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
{page}
}}
"""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder = tmp_path_factory.mktemp("replicas")
    for number in range(MODELS):
        pack(folder / "models", number)
    (folder / "models/broken.tar.gz").write_bytes(b"no archive")
    with ExitStack() as running:
        servers = []
        for number in range(len(ADDRESSES)):
            own = folder / f"server{number}"
            own.mkdir()
            (own / "models").symlink_to(folder / "models")
            servers.append(running.enter_context(on_demand(own)))
        yield servers


@pytest.fixture(scope="module")
def url(servers: list[Server], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Start nginx with the page's configuration. Return its URL."""
    folder = tmp_path_factory.mktemp("nginx")
    (page,) = [block.text for block in blocks("docs/on-demand.md") if block.language == "nginx"]
    port = free_port()
    page = page.replace("listen 80;", f"listen 127.0.0.1:{port};")
    for address, server in zip(ADDRESSES, servers, strict=True):
        page = page.replace(address, f"127.0.0.1:{server.port}")
    config = folder / "nginx.conf"
    config.write_text(WHOLE.format(folder=folder, page=page))
    command = ["nginx", "-c", str(config)]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen(command)
    ends_with(lambda: kill(process))
    wait_until(lambda: is_open(port), "nginx has started")
    return f"http://127.0.0.1:{port}"


def is_open(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def call(url: str, **request: Any) -> requests.Response:
    body = {"inputs": [tensor([2.0])]}
    return requests.post(url, json=body, timeout=PATIENCE, **request)


def test_load_each_model_on_one_machine_however_it_is_named(
    servers: list[Server], url: str
) -> None:
    for number in range(MODELS):
        name, expected = f"m{number}", [2.0 * number]
        assert answer(call(f"{url}/v2/models/{name}/infer")) == expected
        assert answer(call(f"{url}/invocations?model_name={name}")) == expected
        assert answer(call(f"{url}/invocations", headers={TARGET: name})) == expected
    parts = shares(servers, url)
    assert sum(len(part) for part in parts) == MODELS
    assert len([part for part in parts if part]) > 1


def test_try_a_second_machine_after_a_503_and_leave_other_models_where_they_are(
    servers: list[Server], url: str
) -> None:
    before = shares(servers, url)
    reply = call(f"{url}/invocations", headers={TARGET: "broken"})
    expect_error(reply, 503, "model_failed")
    words = "'broken' is tried again"
    wait_until(
        lambda: sum(bool(each.says(words, process="manager")) for each in servers) == 2,
        "two machines have tried it",
    )
    assert shares(servers, url) == before


def shares(servers: list[Server], url: str) -> list[set[str]]:
    """Call each model. Return the models that each server has loaded."""
    for number in range(MODELS):
        assert answer(call(f"{url}/models/m{number}/invoke")) == [2.0 * number]
    return [loaded(server) for server in servers]
