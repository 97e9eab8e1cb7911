"""What a killed `serve` has left in /dev/shm goes when the next one starts; what a living one has stays."""

import subprocess
import sys
from pathlib import Path

import pytest

from serving.supervisor.shared_memory import FOLDER, held, new_prefix
from tests.support.harness import ROOT, Server, make_sleeper
from tests.support.started import ends_with, kill

FIRST, SECOND, THIRD = new_prefix(), new_prefix(), new_prefix()
HOLD = """
import sys
from pathlib import Path
from serving.supervisor.shared_memory import held
with held(sys.argv[1], Path(sys.argv[2])):
    Path(sys.argv[2], sys.argv[1] + "-region").touch()
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(prefix: str, folder: Path) -> "subprocess.Popen[bytes]":
    """Another process that has a region by that prefix."""
    command = [sys.executable, "-c", HOLD, prefix, str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ends_with(lambda: kill(process))
    assert process.stdout and process.stdout.readline() == b"held\n"
    return process


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.mark.parametrize("name", ["lock-", "lock-*", "lock-of", "lock-serve-", "lock-serve-[0-9]"])
def test_a_lock_of_another_program_removes_nothing(name: str, tmp_path: Path) -> None:
    """By its name all files would be left-overs, and a `serve` as root may remove every one."""
    there = {name, "of-others", "serve-0-region"}
    for each in there:
        (tmp_path / each).touch()
    with held(new_prefix(), tmp_path):
        assert names(tmp_path) > there
    assert names(tmp_path) == there


def test_what_a_killed_one_left_is_removed_and_not_what_a_living_one_has(tmp_path: Path) -> None:
    (tmp_path / "of-others").touch()
    killed, living = holder(FIRST, tmp_path), holder(SECOND, tmp_path)
    kill(killed)
    theirs = {"of-others", f"lock-{SECOND}", f"{SECOND}-region"}
    assert names(tmp_path) == theirs | {f"lock-{FIRST}", f"{FIRST}-region"}
    with held(THIRD, tmp_path):
        assert names(tmp_path) == theirs | {f"lock-{THIRD}"}
    assert names(tmp_path) == theirs
    living.communicate()
    assert names(tmp_path) == {"of-others"}


def test_without_room_for_a_lock_it_goes_on(tmp_path: Path) -> None:
    with held(FIRST, tmp_path / "missing"):
        pass


def test_the_next_serve_removes_what_a_killed_one_and_its_processes_left(tmp_path: Path) -> None:
    make_sleeper(tmp_path / "models")
    first, second = (tmp_path / name for name in ("first", "second"))
    first.mkdir()
    second.mkdir()
    server = Server(first, tmp_path / "models").wait_ready()
    prefix = (server.triton_sockets.folder / "shared-memory").read_text()
    assert list(FOLDER.glob(f"{prefix}*"))
    server.kill_all()
    server = Server(second, tmp_path / "models").wait_ready()
    assert list(FOLDER.glob(f"*{prefix}*")) == []
    assert server.stop() == 0
