"""Defines what all backends share: the class that Triton creates for an instance, and functions
that find its files, its parameters and its number of threads.

`backends.install` copies this file into every backend's folder.
"""

import ctypes
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]  # config.pbtxt, as JSON
# config.pbtxt's parameters, or the arguments that Triton passes to initialize
Texts = Mapping[str, str]
# the words may be in upper or lower case, as in Triton's C++ backends
BOOLEANS = {"1": True, "true": True, "0": False, "false": False}
# values with which a parameter has no effect; "cpu" is the default of TARGET_DEVICE
OFF = ("no", "false", "0", "cpu")


class Instance:
    """Serves one version of a model. Triton creates one or more instances, and prescribes the names
    and arguments of the methods. A backend also defines `initialize`, which sets `batcher`."""

    # Fills in a configuration's missing fields, in place, from the files in a version's folder.
    # Returns the configuration, for serving/repository/completion.py.
    complete: Callable[[dict[str, Any], Path], dict[str, Any]]
    batcher: Any

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config: Any) -> Any:
        """Fill in the missing fields of config.pbtxt, in place, and return the configuration. If it
        has inputs and outputs, it stays as it is. Raise ValueError or FileNotFoundError as
        `complete` does."""
        config = auto_complete_model_config.as_dict()
        cls.complete(config, stub_version_folder(config))
        return auto_complete_model_config

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer the requests that the dynamic batcher has merged. Return one response for each, in
        the same order."""
        responses: list[Any] = self.batcher.answer(requests)
        return responses

    def finalize(self) -> None:
        """Free the model's memory before the process ends."""
        del self.batcher


@contextmanager
def explain_missing(what: str, remedy: str) -> Iterator[None]:
    """Wrap the import of an optional library. If the library is missing, raise a
    ModuleNotFoundError that says what needs it (`what`) and what to do (`remedy`)."""
    try:
        yield
    except ModuleNotFoundError as err:
        raise ModuleNotFoundError(
            f"{what}, which Triton's Python environment lacks ({err}): {remedy}"
        ) from err


def parameter_texts(config: Config) -> dict[str, str]:
    """Return config.pbtxt's `parameters` as {name: value}."""
    parameters = config.get("parameters", {})
    return {name: value["string_value"] for name, value in parameters.items()}


def read_parameter(
    parameters: Texts, name: str, parse: Callable[[str], Any], default: Any, allowed: str = ""
) -> Any:
    """Return a parameter's value as `parse` reads it, or `default` if the parameter is not set. If
    `parse` rejects the value, raise a ValueError with the parameter's name, its value and the
    `allowed` values."""
    try:
        return parse(parameters[name]) if name in parameters else default
    except (KeyError, ValueError):
        hint = f"; allowed: {allowed}" if allowed else ""
        raise ValueError(
            f"parameter '{name}' has a wrong value: '{parameters[name]}'{hint}"
        ) from None


def refuse_parameters(parameters: Texts, unsupported: Texts) -> None:
    """Raise ValueError if a parameter in `unsupported` is set to a value that is not in OFF.
    `unsupported` maps each parameter that this backend lacks to advice on what to do instead."""
    for name, advice in unsupported.items():
        value = parameters.get(name, "no")
        if value.lower() not in OFF:
            raise ValueError(f"parameter '{name}' ('{value}') is not supported: {advice}")


def parse_bool(text: str) -> bool:
    """Parse 1, 0, true or false, in upper or lower case. Raise KeyError for other text."""
    return BOOLEANS[text.lower()]


def model_file(args: Texts, config: Config, default_name: str) -> Path:
    """Return the path of the model's file: the one that config.pbtxt names, or else `default_name`.
    `args` is what Triton passes to initialize."""
    name = config.get("default_model_filename") or default_name
    return Path(args["model_repository"], args["model_version"], name)


def stub_version_folder(config: Config) -> Path:
    """Return the folder of the version's files. Call this only while Triton's stub completes the
    configuration.

    The second word of the stub's command line is the path of the model's file, which need not
    exist, or the path of the folder if config.pbtxt has no default_model_filename.
    """
    words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    path = os.fsdecode(words[1])
    return Path(path.removesuffix(config["default_model_filename"]))


def give_back_memory() -> None:
    """Return freed memory to the operating system, because loading a model takes more memory than
    serving it."""
    ctypes.CDLL(None).malloc_trim(0)


def default_threads() -> int:
    """Return SERVE_INFERENCE_THREADS, or else the number of whole processors that the cgroup's
    quota and the CPU affinity allow, but at least 1."""
    threads = os.environ.get("SERVE_INFERENCE_THREADS", "")
    if threads.isdigit() and int(threads) > 0:
        return int(threads)
    processors = min(len(os.sched_getaffinity(0)), cgroup_quota())
    return max(1, math.floor(processors))


def cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return how many processors cgroup v2 or v1 allows this container, or infinity if there is no
    quota."""
    v2 = ("cpu.max",)  # contains the quota and the period
    v1 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    for names in (v2, v1):
        try:
            texts = [(root / name).read_text() for name in names]
            quota, period = " ".join(texts).split()
        except (OSError, ValueError):
            continue
        if quota.isdigit():  # not "max" or "-1"
            return int(quota) / int(period)
    return math.inf
