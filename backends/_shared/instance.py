"""Finds an instance's files, parameters and number of threads, for every backend.

`backends.install` copies this file into every backend's folder.
"""

import ctypes
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# the texts may be in upper or lower case, as in Triton's C++ backends
BOOLEANS = {"1": True, "true": True, "0": False, "false": False}
# values that turn a parameter off; "cpu" is the default of TARGET_DEVICE
OFF = ("no", "false", "0", "cpu")


@contextmanager
def needs(what: str, remedy: str) -> Iterator[None]:
    """Import an optional library in this context. If it is missing, the ModuleNotFoundError says
    what needs the library and what to do."""
    try:
        yield
    except ModuleNotFoundError as err:
        raise ModuleNotFoundError(
            f"{what}, which Triton's Python environment lacks ({err}): {remedy}"
        ) from err


def given_parameters(config: Mapping[str, Any]) -> dict[str, str]:
    """Return config.pbtxt's `parameters` as {name: value}."""
    parameters = config.get("parameters", {})
    return {name: value["string_value"] for name, value in parameters.items()}


def read(
    parameters: Mapping[str, str],
    name: str,
    parse: Callable[[str], Any],
    default: Any,
    allowed: str = "",
) -> Any:
    """Return a parameter's value. If `parse` rejects it, raise a ValueError that names the value
    and the `allowed` ones."""
    try:
        return parse(parameters[name]) if name in parameters else default
    except (KeyError, ValueError):
        hint = f"; allowed: {allowed}" if allowed else ""
        raise ValueError(
            f"parameter '{name}' has a wrong value: '{parameters[name]}'{hint}"
        ) from None


def refuse(parameters: Mapping[str, str], removed: Mapping[str, str]) -> None:
    """Raise ValueError if a parameter in `removed` is set, unless its value turns it off. `removed`
    maps the parameters that this backend does not support to what to do instead."""
    for name, replacement in removed.items():
        if parameters.get(name, "no").lower() not in OFF:
            raise ValueError(
                f"parameter '{name}' ('{parameters[name]}') is not supported: {replacement}"
            )


def parse_bool(text: str) -> bool:
    """Parse 1, 0, true or false, in upper or lower case. Raise KeyError for other text."""
    return BOOLEANS[text.lower()]


def model_file(args: Mapping[str, str], config: Mapping[str, Any], usual: str) -> Path:
    """Return the path of the model's file: the one that config.pbtxt names, or else `usual`. `args`
    is what Triton passes to initialize."""
    name = config.get("default_model_filename") or usual
    return Path(args["model_repository"], args["model_version"], name)


def stub_version_folder(config: Mapping[str, Any]) -> Path:
    """Return the folder of the version's files. Call this only while Triton's stub completes the
    configuration.

    The stub's command line has the path of the model's file, which need not exist. If config.pbtxt
    has no default_model_filename, the command line has the path of the folder instead.
    """
    path = os.fsdecode(Path("/proc/self/cmdline").read_bytes().split(b"\0")[1])
    return Path(path.removesuffix(config["default_model_filename"]))


def give_back_memory() -> None:
    """Return freed memory to the system. Loading a model takes more memory than serving it."""
    ctypes.CDLL(None).malloc_trim(0)


def default_threads() -> int:
    """Return SERVE_INFERENCE_THREADS, or else the number of processors that the cgroup's quota and
    the CPU affinity allow."""
    threads = os.environ.get("SERVE_INFERENCE_THREADS", "")
    if threads.isdigit() and int(threads) > 0:
        return int(threads)
    processors = min(len(os.sched_getaffinity(0)), cgroup_quota())
    return max(1, math.floor(processors))


def cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return how many processors cgroup v2 or v1 allows this container, or infinity if there is no
    quota."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            texts = [(root / name).read_text() for name in names]
            quota, period = " ".join(texts).split()
        except (OSError, ValueError):
            continue
        if quota.isdigit():  # not "max" or "-1"
            return int(quota) / int(period)
    return math.inf
