"""`python -m simulate` as its users run it: signals, mistakes, what it leaves behind."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulate.inplace import can_isolate
from simulate.options import parse
from tests.simulate.command import Command
from tests.simulate.simulation import ENOUGH_TO_ANSWER, MISBEHAVING, client_of, make_tar
from tests.support.harness import PATIENCE, ROOT, wait_until


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Command]]:
    """Commands to be ended in any case."""
    commands: list[Command] = []
    yield commands
    for command in commands:
        command.process.kill()
        command.process.wait()


def start(started: list[Command], tmp_path: Path, *arguments: str) -> Command:
    started.append(Command(tmp_path, "--serve", str(MISBEHAVING), *arguments))
    return started[-1]


ISOLATIONS = ["none", *(["auto"] if can_isolate() else [])]


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_nothing_is_left(
    started: list[Command], tmp_path: Path, number: signal.Signals, isolation: str
) -> None:
    model = make_tar(tmp_path / "model.tar.gz", {"a/config.pbtxt": "x"})
    command = start(started, tmp_path, "--isolation", isolation, "--instances", "2", "--model-data", str(model))
    client = client_of(command.wait_ready())
    client.invoke_endpoint(EndpointName="any", Body=b"{}")
    assert len(command.left()) >= 2
    assert command.stop(number) == 0
    assert command.left() == []
    assert list(command.temporary.iterdir()) == []
    assert "1 calls answered\nrules broken: none\n" in command.output()


def test_a_signal_while_it_starts_ends_it_too(started: list[Command], tmp_path: Path) -> None:
    command = start(started, tmp_path, "--env", "BREAKS=start-up")
    wait_until(command.left, "a container")
    assert command.stop(signal.SIGINT) == 0
    assert command.left() == []
    assert list(command.temporary.iterdir()) == []


def test_a_second_signal_kills_a_container_that_ignores_the_first(started: list[Command], tmp_path: Path) -> None:
    command = start(started, tmp_path, "--env", "BREAKS=stop")
    command.wait_ready()
    command.process.send_signal(signal.SIGINT)
    wait_until(lambda: "stopping" in command.output(), "it is stopping")
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(timeout=PATIENCE) == 0
    assert command.left() == []


def test_a_container_in_namespaces_does_not_outlive_a_simulator_that_is_killed(
    started: list[Command], tmp_path: Path
) -> None:
    command = start(started, tmp_path)
    command.wait_ready()
    containers = command.left()
    command.stop(signal.SIGKILL)
    if can_isolate():
        wait_until(lambda: not command.left(), "the container is gone")
    for pid in command.left():
        os.kill(pid, signal.SIGKILL)
    assert containers


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
    ("arguments", "said"),
    [
        (["--instances", "0"], "--instances must be 1 or more"),
        (["--port", "70000"], "--port must be from 0 to 65535"),
        (["--models", "absent"], "--models absent: there is no such folder"),
        (["--model-data", "absent"], "--model-data absent: there is no such file or folder"),
        (["--models", ".", "--model-data", "."], "not allowed with argument"),
        (["--env", "NAME"], "--env NAME: must be NAME=VALUE"),
        (["--memory", "much"], "--memory much: must be a number of bytes"),
        (["--limit", "no-such=1"], "there is no rule 'no-such'"),
        (["--limit", "headers=1"], "the rule headers has no limit"),
        (["--limit", "time=0"], "time=0: must be a number above 0"),
        (["--health-check-timeout", "-1"], "start-up=-1.0: must be a number above 0"),
        (["--chaos", "flood"], "'flood' is not one of slow-disk, kill, 507"),
        (["--chaos", "507=2"], "507=2: it must be a number from 0 to 1"),
        (["--async-output", "folder"], "must be s3://BUCKET/PREFIX"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_what_cannot_be_started_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    broken = tmp_path / "model.tar.gz"
    broken.write_bytes(b"no archive")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, said in [
            (["--port", str(port)], f"error: cannot listen on 127.0.0.1:{port}: Address already in use; give"),
            (["--serve", "absent"], "error: absent is not an executable file"),
            (["--model-data", str(broken)], "error: model.tar.gz cannot be unpacked"),
        ]:
            done = run("--serve", str(MISBEHAVING), *arguments)
            assert done.returncode == 1, done
            assert said in done.stdout.splitlines()[-1]
            assert "Traceback" not in done.stdout + done.stderr


def test_a_container_that_fails_is_exit_code_1_with_its_reason() -> None:
    command = ["--serve", str(MISBEHAVING), "--port", "0", "--env", "BREAKS=start-up", "--health-check-timeout"]
    for seconds in ENOUGH_TO_ANSWER:
        done = run(*command, str(seconds))
        assert done.returncode == 1
        last = done.stdout.splitlines()[-1]
        assert "error: instance 1 did not pass the ping health check; the last one: " in last
        if "the last one: 503" in last:
            return
    raise AssertionError(last)


def test_strict_says_by_the_exit_code_that_a_rule_was_broken(started: list[Command], tmp_path: Path) -> None:
    command = start(started, tmp_path, "--strict", "--env", "BREAKS=ping-body")
    command.wait_ready()
    assert command.stop(signal.SIGINT) == 3
    assert "rules broken: ping-body 1" in command.output()


def test_an_image_that_is_not_there_or_no_engine_is_told(tmp_path: Path) -> None:
    engine = tmp_path / "podman"
    engine.write_text("#!/bin/sh\necho no such image >&2\nexit 125\n")  # a stand-in for an engine that has no image
    engine.chmod(0o755)
    done = run("--image", "no-such", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (done.returncode, done.stdout) == (
        1,
        "error: podman has no image no-such: no such image; `podman images` lists its images\n",
    )
    (tmp_path / "empty").mkdir()
    done = run("--image", "no-such", PATH=str(tmp_path / "empty"))
    assert done.stdout.startswith("error: no podman and no docker here")
    assert shutil.which("podman", path=str(tmp_path / "empty")) is None
