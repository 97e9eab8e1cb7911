"""End what a failed test started, and keep torch out of the unit tests."""

import subprocess
import sys

import pytest

from tests.support.harness import ROOT
from tests.support.started import ended_on_failure, ends_with, kill

pytestmark = pytest.mark.unit


def sleeper() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    ends_with(lambda: kill(process))
    return process


def test_a_failing_test_ends_the_processes_that_it_started_and_no_others() -> None:
    before = sleeper()
    with pytest.raises(ZeroDivisionError), ended_on_failure():
        within = sleeper()
        raise ZeroDivisionError
    assert (before.poll(), within.poll()) == (None, -9)
    kill(before)


def test_a_process_that_has_ended_is_not_killed_again() -> None:
    ended, another = sleeper(), sleeper()
    kill(ended)
    ended.pid = another.pid
    kill(ended)
    with pytest.raises(subprocess.TimeoutExpired):
        another.wait(0.5)
    kill(another)


def test_files_with_the_mark_unit_import_no_torch() -> None:
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.unit" in file.read_text()]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    code = f"import {', '.join(names)}, sys; sys.exit('torch' in sys.modules)"
    assert len(names) > 50
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
