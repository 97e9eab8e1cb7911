"""Resources of the machine: open files, and names in /dev/shm that a killed `serve` leaves."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from serving.settings.setting import SettingsError
from serving.settings.table import Settings
from serving.supervisor import resources
from serving.supervisor.resources import held, new_prefix
from tests.support.harness import ROOT
from tests.support.started import ends_with, kill

pytestmark = pytest.mark.unit

FIRST, SECOND, THIRD = new_prefix(), new_prefix(), new_prefix()
HOLD = """
import sys
from pathlib import Path
from serving.supervisor.resources import held
with held(sys.argv[1], Path(sys.argv[2])):
    Path(sys.argv[2], sys.argv[1] + "-region").touch()
    print("held", flush=True)
    sys.stdin.read()
"""
SETTINGS = replace(Settings(), workers=2, max_concurrency=128)


@pytest.fixture(params=[128, 256, 1024, 65536])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(resources, "hard_limit", lambda: request.param)
    return int(request.param)


def test_all_requests_in_work_and_the_process_s_own_files_fit(limit: int) -> None:
    concurrency = resources.fitted(SETTINGS).max_concurrency
    assert 0 < concurrency <= 128
    assert resources.OWN_FILES + resources.FILES_PER_REQUEST * concurrency <= limit
    assert resources.nginx_connections(concurrency, limit) >= resources.FILES_PER_REQUEST * concurrency


def test_a_lower_limit_is_said_with_what_would_do(limit: int) -> None:
    said = resources.shortage(SETTINGS)
    lowered = resources.fitted(SETTINGS).max_concurrency < 128
    assert lowered == (limit < 448)
    assert bool(said) == lowered
    if lowered:
        assert f" {limit} " in said and "--ulimit nofile=448" in said


def test_a_limit_too_low_to_serve_stops_the_start_with_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "hard_limit", lambda: 100)
    with pytest.raises(SettingsError, match=r"\b100\b.*\b128\b"):
        resources.fitted(SETTINGS)


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    script = """
import resource
from serving.supervisor.resources import raise_soft_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, min(hard, 500)))
raise_soft_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "500\n"


def holder(prefix: str, folder: Path) -> "subprocess.Popen[bytes]":
    """Start another process that holds a region with that prefix."""
    command = [sys.executable, "-c", HOLD, prefix, str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ends_with(lambda: kill(process))
    assert process.stdout and process.stdout.readline() == b"held\n"
    return process


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.mark.parametrize("name", ["lock-", "lock-*", "lock-of", "lock-serve-", "lock-serve-[0-9]"])
def test_a_lock_of_another_program_removes_nothing(name: str, tmp_path: Path) -> None:
    """Such a name as a pattern would match all files, and a `serve` as root may remove them."""
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
