"""Tests resources of the machine: open files, and names in /dev/shm that a killed `serve`
leaves."""

import subprocess
import sys
from pathlib import Path

import pytest

from serving.pid1.resources import new_prefix, shared_memory_lock
from tests.support.harness import ROOT
from tests.support.started import ends_with, kill

pytestmark = pytest.mark.unit

FIRST, SECOND, THIRD = new_prefix(), new_prefix(), new_prefix()
HOLD = """
import sys
from pathlib import Path
from serving.pid1.resources import shared_memory_lock
with shared_memory_lock(sys.argv[1], Path(sys.argv[2])):
    Path(sys.argv[2], sys.argv[1] + "-region").touch()
    print("held", flush=True)
    sys.stdin.read()
"""


RAISE = """
import resource, sys
from serving.pid1.resources import set_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, int(sys.argv[1])))
print(set_file_limit(128), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def raised(limit: int) -> "subprocess.CompletedProcess[str]":
    """Raise the limit of open files in a process with the hard limit `limit`. Return the process,
    which has printed its limits and ended."""
    command = [sys.executable, "-c", RAISE, str(limit)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_raise_the_soft_limit_of_open_files_to_the_hard_limit() -> None:
    assert raised(500).stdout == "500 500\n"


def test_stop_the_start_if_too_few_files_may_be_open() -> None:
    failed = raised(447)
    assert failed.returncode == 1
    assert "SettingsError" in failed.stderr and "nofile=448" in failed.stderr


def holder(prefix: str, folder: Path) -> "subprocess.Popen[bytes]":
    """Start another process that holds a shared memory region with that prefix."""
    command = [sys.executable, "-c", HOLD, prefix, str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ends_with(lambda: kill(process))
    assert process.stdout and process.stdout.readline() == b"held\n"
    return process


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.mark.parametrize("name", ["lock-", "lock-*", "lock-of", "lock-serve-", "lock-serve-[0-9]"])
def test_remove_nothing_while_another_program_holds_the_lock(name: str, tmp_path: Path) -> None:
    there = {name, "of-others", "serve-0-region"}
    for each in there:
        (tmp_path / each).touch()
    with shared_memory_lock(new_prefix(), tmp_path):
        assert names(tmp_path) > there
    assert names(tmp_path) == there


def test_remove_what_a_killed_serve_left_but_nothing_of_a_living_one(tmp_path: Path) -> None:
    (tmp_path / "of-others").touch()
    killed, living = holder(FIRST, tmp_path), holder(SECOND, tmp_path)
    kill(killed)
    theirs = {"of-others", f"lock-{SECOND}", f"{SECOND}-region"}
    assert names(tmp_path) == theirs | {f"lock-{FIRST}", f"{FIRST}-region"}
    with shared_memory_lock(THIRD, tmp_path):
        assert names(tmp_path) == theirs | {f"lock-{THIRD}"}
    assert names(tmp_path) == theirs
    living.communicate()
    assert names(tmp_path) == {"of-others"}


def test_go_on_without_room_for_a_lock(tmp_path: Path) -> None:
    with shared_memory_lock(FIRST, tmp_path / "missing"):
        pass
