"""Tests `python -m simulate` as users run it: signals, mistakes, and what it leaves behind."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import urllib3

from simulate.__main__ import build_parser
from simulate.container import Launch, connection_in, image_command
from tests.simulate.command import Command
from tests.simulate.simulation import MISBEHAVING, client_of, make_tar
from tests.support.harness import PATIENCE, ROOT, wait_until
from tests.support.started import ends_with

pytestmark = pytest.mark.stack

SERVE = ("--serve", str(MISBEHAVING))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_ready", [True, False])
def test_stop_on_a_signal_and_leave_nothing(
    tmp_path: Path, number: signal.Signals, is_ready: bool
) -> None:
    model = make_tar(tmp_path / "model.tar.gz", {"a/config.pbtxt": "x"})
    broken = () if is_ready else ("--env", "BREAKS=start-up")
    command = Command(tmp_path, *SERVE, "--model-data", str(model), *broken)
    if is_ready:
        client_of(command.wait_ready()).invoke_endpoint(EndpointName="any", Body=b"{}")
    wait_until(command.left, "a container")
    assert command.stop(number) == 0
    assert command.left() == []
    assert list(command.temporary.iterdir()) == []
    assert not is_ready or "1 calls answered\nrules broken: none\n" in command.output()


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "simulate", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        timeout=2 * PATIENCE,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--port", "70000"],
        ["--models", "absent"],
        ["--model-data", "absent"],
        ["--models", ".", "--model-data", "."],
        ["--env", "NAME"],
        ["--memory", "much"],
        ["--limit", "no-such=1"],
        ["--limit", "headers=1"],
        ["--limit", "time=0"],
    ],
)
def test_name_wrong_arguments_and_exit_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser().parse_args(arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err.splitlines()[-1]


def test_report_a_failed_start_in_one_line_and_exit_with_1(tmp_path: Path) -> None:
    broken = tmp_path / "model.tar.gz"
    broken.write_bytes(b"no archive")
    engine = tmp_path / "podman"
    # a stand-in for an engine that does not find the image
    engine.write_text("#!/bin/sh\necho no such image >&2\nexit 125\n")
    engine.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, path, named in [
            ([*SERVE, "--port", str(port)], "", f"127.0.0.1:{port}"),
            (["--serve", "absent"], "", "absent"),
            ([*SERVE, "--model-data", str(broken)], "", "model.tar.gz"),
            (["--image", "no-such"], f"{tmp_path}:", "no-such"),
            (["--image", "no-such"], "/nowhere", "podman"),
        ]:
            done = run(
                *arguments, PATH="/nowhere" if path == "/nowhere" else path + os.environ["PATH"]
            )
            assert done.returncode == 1, done
            assert done.stdout.splitlines()[-1].startswith("error: ")
            assert named in done.stdout.splitlines()[-1]
            assert "Traceback" not in done.stdout + done.stderr


def test_fail_under_strict_if_a_rule_was_broken(tmp_path: Path) -> None:
    command = Command(tmp_path, *SERVE, "--strict", "--env", "BREAKS=ping-body")
    command.wait_ready()
    assert command.stop(signal.SIGINT) == 3
    assert "rules broken: ping-body 1" in command.output()


@pytest.mark.parametrize(
    ("port", "network"), [(0, "--network none"), (12345, "-p 127.0.0.1:12345:8080")]
)
def test_run_an_image_with_few_rights_as_the_platform_does(
    tmp_path: Path, port: int, network: str
) -> None:
    model, models = tmp_path / "model", tmp_path / "models"
    launch = Launch(tmp_path, {"A": "b c"}, 2**30, tmp_path, "docker", "mine:1", model, models)
    text = " ".join(image_command(launch, "sim-1", port))
    assert text.startswith("docker run --rm --name sim-1 --read-only ")
    assert text.endswith(" mine:1 serve")
    for words in (
        network,
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        f"--memory {2**30}",
        f"--shm-size {2**29}",
        "-e A=b c",
        f"-v {tmp_path}/model:/opt/ml/model:ro",
        f"-v {tmp_path}/models:/opt/ml/models:ro",
        "-e SAGEMAKER_BIND_TO_PORT=8080",
        "-e SAGEMAKER_SAFE_PORT_RANGE=23000-23999",
    ):
        assert words in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter another network")
def test_reach_a_container_without_a_network() -> None:
    code = (
        "from http.server import *; HTTPServer(('127.0.0.1', 8080), "
        "SimpleHTTPRequestHandler).serve_forever()"
    )
    start = f"ip link set lo up && exec {sys.executable} -c {shlex.quote(code)}"
    alone = subprocess.Popen(["unshare", "--net", "sh", "-c", start], stderr=subprocess.DEVNULL)
    ends_with(alone.kill)
    pool = urllib3.HTTPConnectionPool("127.0.0.1", 8080)
    pool.ConnectionCls = connection_in(alone.pid)

    def status() -> int:
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            return pool.request("GET", "/", retries=False).status
        return 0

    wait_until(lambda: status() == 200, "the server answers inside")
    alone.kill()
    alone.wait()
    assert status() == 0
