"""Runs the processes in serving/preparation/, which survey and check models. Used by `serve`, and
when model folders change. Standard library only."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from serving.host.processes import dying_with_us, last_line
from serving.repository.layout import LayoutError, Survey
from serving.settings.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
END_SECONDS = 10.0  # how long to wait for a process to remove its files before it is killed


def survey(settings: Settings, *words: str) -> Survey:
    """Run preparation/survey.py with the arguments `words`, and return its Survey of the model
    repositories. Raise LayoutError if it fails, takes too long, or finds mistakes in the layout."""
    code, stdout, stderr = _run("survey", settings, words)
    if code:
        raise LayoutError([f"the model repositories cannot be read: {last_line(stderr)}"])
    result = Survey(**json.loads(stdout))
    if result.mistakes:
        raise LayoutError(result.mistakes)
    return result


def mistakes(settings: Settings) -> list[str]:
    """Return one line for each mistake that `serve --check` finds in the models that the settings
    name, or a single line that says why the check failed. Raise LayoutError if the check takes too
    long."""
    code, stdout, stderr = _run("check", settings, ["json"])
    if code == 0:
        return []
    if code != 1 or not stdout:
        return [f"its check ended: {last_line(stderr)}"]
    return [f"{name}: {mistake}" for name, mistake in json.loads(stdout)["mistakes"]]


def print_check(settings: Settings) -> int:
    """Print what `serve --check` finds, without a time limit. Return the exit code."""
    return _run("check", settings, shown=True)[0]


def _run(
    module: str, settings: Settings, words: Sequence[str] = (), shown: bool = False
) -> tuple[int, str, str]:
    """Run `python -m serving.preparation.MODULE` with the arguments `words`. Return its exit code,
    its output and its errors. If `shown` is true, the process writes to the terminal instead, and
    may take any time. Otherwise, raise LayoutError if it takes longer than startup may."""
    python = [*dying_with_us("TERM"), sys.executable]
    command = [*python, "-m", f"serving.preparation.{module}", *words]
    environ = os.environ | settings.environment() | {"PYTHONDONTWRITEBYTECODE": "1"}
    output = None if shown else subprocess.PIPE
    seconds = None if shown else settings.start_timeout
    # If the manager dies, `serve` kills the manager's process group. Keep the new process out of
    # that group, so that it lives long enough to end the tritonserver that it started (check.py).
    group = None if shown else 0
    with subprocess.Popen(
        command, env=environ, cwd=ROOT, stdout=output, stderr=output, text=True, process_group=group
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as err:
            limit = f"SERVE_START_TIMEOUT={err.timeout:g} s; does a model's code hang?"
            raise LayoutError([f"the {module} of the models took more than {limit}"]) from err
        finally:
            _end(process)
    return process.returncode, stdout or "", stderr or ""


def _end(process: "subprocess.Popen[str]") -> None:
    """End the process, if it still runs. Kill it if it does not end within END_SECONDS."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    process.kill()
