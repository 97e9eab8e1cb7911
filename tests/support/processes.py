"""A function in a process of its own, which tells how far its memory rises."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")
# Each is forked from one process that has imported what takes a second.
_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.bodies.hostile"])


def alone(function: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> Result:
    """What the function gives in a new process."""
    with ProcessPoolExecutor(1, _PROCESSES) as processes:
        return processes.submit(function, *given, **named).result()


def rise(function: Callable[[], Result]) -> tuple[int, Result]:
    """(the bytes that this process takes meanwhile at most, beside what it has; what the function gives)"""
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM starts anew
    result = function()
    return _memory("VmHWM") - before, result


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
