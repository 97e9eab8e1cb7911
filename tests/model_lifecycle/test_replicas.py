"""Tests the nginx configuration of docs/on-demand.md in front of three machines. Each machine is a
server of its own, behind an address of the same nginx that logs the models of its calls."""

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.model_lifecycle.test_on_demand import TARGET, answer, on_demand, pack
from tests.support.harness import PATIENCE, Server, expect_error, free_port, tensor, wait_until
from tests.support.readme import blocks
from tests.support.started import ends_with, kill

pytestmark = pytest.mark.stack

MODELS = 12  # the probability that all of them are on the same machine is 1 in 177,147
ADDRESSES = [f"10.0.0.{number}:8080" for number in (1, 2, 3)]
WHOLE = """daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    log_format models "$request_uri $http_x_amzn_sagemaker_target_model";
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
{page}
{machines}
}}
"""
MACHINE = """
server {{
    listen 127.0.0.1:{port};
    access_log {log} models;
    location / {{
        proxy_pass {url};
        proxy_set_header Host $http_host;
    }}
}}
"""


@dataclass
class Replicas:
    url: str
    logs: list[Path]
    servers: list[Server]
    sent: int = 0  # number of calls sent to the machines

    def call(self, path: str, **request: Any) -> requests.Response:
        self.sent += 1
        body = {"inputs": [tensor([2.0])]}
        return requests.post(self.url + path, json=body, timeout=PATIENCE, **request)

    def logged(self) -> list[list[str]]:
        """Return, for each machine, the models of the calls that it got."""
        return [re.findall(r"\b(m\d+|broken)\b", log.read_text()) for log in self.logs]

    def wait_logged(self) -> list[list[str]]:
        """Wait for the log lines, which are written after the replies."""
        wait_until(lambda: sum(map(len, self.logged())) == self.sent, "the logs have all calls")
        return self.logged()


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("replicas")
    with ExitStack() as running:
        servers = []
        for address in ADDRESSES:
            own = folder / address.partition(":")[0]
            for number in range(MODELS):
                pack(own / "models", number)
            (own / "models/broken.tar.gz").write_bytes(b"no archive")
            servers.append(running.enter_context(on_demand(own)))
        yield start_nginx(folder, servers)


def start_nginx(folder: Path, servers: list[Server]) -> Replicas:
    """Start nginx with the page's configuration, in front of machines that pass calls on to one
    server each."""
    (page,) = [block.text for block in blocks("docs/on-demand.md") if block.language == "nginx"]
    port, machines, logs = free_port(), "", []
    page = page.replace("listen 80;", f"listen 127.0.0.1:{port};")
    for address, server in zip(ADDRESSES, servers, strict=True):
        own = free_port()
        logs.append(folder / f"{own}.log")
        page = page.replace(address, f"127.0.0.1:{own}")
        machines += MACHINE.format(port=own, log=logs[-1], url=server.url)
    config = folder / "nginx.conf"
    config.write_text(WHOLE.format(folder=folder, page=page, machines=machines))
    command = ["nginx", "-c", str(config)]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen(command)
    ends_with(lambda: kill(process))
    wait_until(lambda: is_open(port), "nginx has started")
    return Replicas(f"http://127.0.0.1:{port}", logs, servers)


def is_open(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def shares(replicas: Replicas) -> list[set[str]]:
    """Call each model. Return the models that each machine has received so far."""
    for number in range(MODELS):
        assert answer(replicas.call(f"/models/m{number}/invoke")) == [2.0 * number]
    return [set(models) - {"broken"} for models in replicas.wait_logged()]


def test_send_each_model_to_one_machine_however_it_is_named(replicas: Replicas) -> None:
    for number in range(MODELS):
        name, expected = f"m{number}", [2.0 * number]
        assert answer(replicas.call(f"/v2/models/{name}/infer")) == expected
        assert answer(replicas.call(f"/invocations?model_name={name}")) == expected
        assert answer(replicas.call("/invocations", headers={TARGET: name})) == expected
    parts = shares(replicas)
    assert sum(len(part) for part in parts) == MODELS
    assert len([part for part in parts if part]) > 1
    loaded = [
        {model["name"] for model in requests.get(f"{server.url}/models").json()["models"]}
        for server in replicas.servers
    ]
    assert loaded == parts


def test_try_another_machine_after_a_503_for_this_model_only(replicas: Replicas) -> None:
    before = shares(replicas)
    reply = replicas.call("/invocations", headers={TARGET: "broken"})
    expect_error(reply, 503, "model_failed")
    replicas.sent += 1
    assert sorted(models.count("broken") for models in replicas.wait_logged()) == [0, 1, 1]
    assert shares(replicas) == before
