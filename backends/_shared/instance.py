"""One instance of a model: where its file lies, its parameters, how many threads it takes, what it gives back.

`backends.install` puts a copy of this file into every backend's folder.
"""

import ctypes
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

BOOLEANS = {"1": True, "true": True, "0": False, "false": False}  # in any case, as Triton's C++ backends read them


def given_parameters(config: Mapping[str, Any]) -> dict[str, str]:
    """config.pbtxt's `parameters`."""
    return {name: value["string_value"] for name, value in config.get("parameters", {}).items()}


def read(given: Mapping[str, str], name: str, parse: Callable[[str], Any], default: Any, allowed: str = "") -> Any:
    """A parameter's value; ValueError names it, its value and what is allowed."""
    try:
        return parse(given[name]) if name in given else default
    except (KeyError, ValueError):
        hint = f"; allowed: {allowed}" if allowed else ""
        raise ValueError(f"parameter '{name}' has a wrong value: '{given[name]}'{hint}") from None


def parse_bool(text: str) -> bool:
    """1, 0, true or false, in any case; KeyError."""
    return BOOLEANS[text.lower()]


def version_folder(args: Mapping[str, str]) -> Path:
    """Where the files of an instance's version lie; `args` is what Triton gives to initialize."""
    return Path(args["model_repository"]) / args["model_version"]


def stub_model_path() -> Path:
    """The model's file, or the one that it should have, while the configuration is completed: by Triton's stub, of
    which the own command line is all there is then, or by serving/preparation/complete_config.py, which
    leaves it in COMPLETED_MODEL."""
    on_command_line = os.fsdecode(Path("/proc/self/cmdline").read_bytes().split(b"\0")[1])
    return Path(os.environ.get("COMPLETED_MODEL", on_command_line))


def give_back_memory() -> None:
    """To the system, what malloc keeps of what was freed: a load needs more than the model it leaves."""
    ctypes.CDLL(None).malloc_trim(0)


def default_threads() -> int:
    """SERVE_INFERENCE_THREADS, else the processors of the control group's quota and the CPU affinity."""
    threads = os.environ.get("SERVE_INFERENCE_THREADS", "")
    if threads.isdigit() and int(threads) > 0:
        return int(threads)
    return max(1, math.floor(min(len(os.sched_getaffinity(0)), cgroup_quota())))


def cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Processors by cgroup v2's or v1's quota as a container sees it; infinity without one."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((root / name).read_text() for name in names).split()
        except (OSError, ValueError):
            continue
        if quota.isdigit():  # neither "max" nor "-1"
            return int(quota) / int(period)
    return math.inf
