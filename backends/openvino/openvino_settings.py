"""Reads the `parameters` in config.pbtxt, and manages the cache of compiled models. The parameters
have the same names and meanings as in NVIDIA's backend (openvino_backend, README.md).

INFERENCE_PRECISION_HINT is not a parameter of NVIDIA's backend but a property of OpenVINO. This
module does not import OpenVINO.

OpenVINO looks up a compiled model in the cache folder by model, properties, processor and OpenVINO
version, and compiles it again if the file is incomplete. A compiled model is code, so it is cached
only in folders to which nobody else may write.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

try:
    from instance import (
        default_threads,
        parameter_texts,
        read_parameter,
        refuse_parameters,
    )  # in Triton's stub, beside this file
except ModuleNotFoundError:  # outside Triton's stub, for build_engines
    from backends._shared.instance import (
        default_threads,
        parameter_texts,
        read_parameter,
        refuse_parameters,
    )

HINTS = ("latency", "throughput", "cumulative_throughput")
PRECISIONS = ("f32", "bf16", "f16")
# precision -> the capability of processors that support it
CAPABILITIES = {"bf16": "BF16", "f16": "FP16"}
PARAMETERS = (  # the parameters in config.pbtxt that this backend reads
    "HINT_BF16",
    "INFERENCE_NUM_THREADS",
    "INFERENCE_PRECISION_HINT",
    "NUM_STREAMS",
    "PERFORMANCE_HINT",
)
UNSUPPORTED = {  # NVIDIA's parameters that this backend does not support -> what to do instead
    "CPU_EXTENSION_PATH": "export the model with OpenVINO's own operators",
    "TARGET_DEVICE": "this backend runs on the processor; other devices need NVIDIA's backend",
    "RESHAPE_IO_LAYERS": "export the model with these shapes, or with variable dimensions",
    "SKIP_OV_DYNAMIC_BATCHSIZE": "leave it out: a batch may have any number of rows",
    "ENABLE_BATCH_PADDING": "leave it out: a batch may have any number of rows",
}
# Maximum size of the cache in bytes. Without a limit, the cache would grow in multi-model mode,
# where new models come while the container runs.
LIMIT_BYTES = 4 << 30
# parameters that Triton's Python backend reads, on which this backend runs
PYTHON_BACKEND_PARAMETERS = ("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS")


@dataclass(frozen=True)
class OpenvinoSettings:
    """The settings of an instance. The parameters' defaults are those of NVIDIA's backend, except
    that the number of threads follows from the container's processor limit."""

    threads: int = 1
    hint: str = "LATENCY"
    streams: str = ""
    precision: str = ""
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "OpenvinoSettings":
        """Read config.pbtxt. If a value is invalid, raise a ValueError that names the parameter and
        the allowed values."""
        parameters = parameter_texts(config)
        refuse_parameters(parameters, UNSUPPORTED)
        default_precision = "bf16" if _one_of(parameters, "HINT_BF16", ("yes",)) else ""
        # lowercase parameters belong to the clients
        warnings = [
            f"parameter '{name}' has no effect"
            for name in parameters
            if name.isupper() and name not in (*PARAMETERS, *PYTHON_BACKEND_PARAMETERS)
        ]
        threads = read_parameter(
            parameters, "INFERENCE_NUM_THREADS", _count, 0, "a whole number; 0: the default"
        )
        hint = _one_of(parameters, "PERFORMANCE_HINT", HINTS, "latency")
        streams = read_parameter(
            parameters, "NUM_STREAMS", _streams, "", "a whole number from 1, AUTO or NUMA"
        )
        return cls(
            threads=threads or default_threads(),
            hint=hint.upper(),
            streams=streams,
            precision=_one_of(
                parameters, "INFERENCE_PRECISION_HINT", PRECISIONS, default_precision
            ),
            warnings=tuple(warnings),
        )

    def properties(self, capabilities: list[str]) -> dict[str, Any]:
        """Return OpenVINO's properties for a processor with these `capabilities`.

        Threads are not pinned to processors, because the threads of several models would be pinned
        to the same ones.
        """
        properties: dict[str, Any] = {
            "PERFORMANCE_HINT": self.hint,
            "INFERENCE_NUM_THREADS": self.threads,
            "ENABLE_CPU_PINNING": False,
        }
        if self.streams:
            properties["NUM_STREAMS"] = self.streams
        if self.precision:
            precision = "f32" if self.lacks_precision(capabilities) else self.precision
            properties["INFERENCE_PRECISION_HINT"] = precision
        return properties

    def lacks_precision(self, capabilities: list[str]) -> bool:
        """Return whether the processor has no instructions for the requested precision, which would
        then be slower than f32."""
        needed = CAPABILITIES.get(self.precision)
        return needed is not None and needed not in capabilities


def _one_of(
    parameters: Mapping[str, str], name: str, allowed: Sequence[str], default: str = ""
) -> str:
    """Return the parameter's value in lower case, or `default` if it is not set. Raise ValueError
    if it is not one of the `allowed` values."""

    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(text)
        return text.lower()

    return str(read_parameter(parameters, name, parse, default, ", ".join(allowed)))


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _streams(text: str) -> str:
    """Return AUTO, NUMA or a number above 0, as text. Raise ValueError for any other text."""
    if text.upper() in ("AUTO", "NUMA") or _count(text) > 0:
        return text.upper()
    raise ValueError(text)


def cache_root() -> Path:
    """Return the folder for this container's compiled models. The folder need not exist."""
    return Path(os.environ.get("TMPDIR") or "/tmp") / "serve-engines/openvino"


@contextmanager
def locked_cache(model: str, version: str) -> Iterator[Path]:
    """Yield the cache folder of one version of a model, locked against other instances. If the
    `with` block succeeds, remove compiled models that are no longer needed. Raise OSError if the
    folder cannot be locked or changed."""
    ensure_private(cache_root().parent)
    folder = cache_root() / quote(model, safe="") / version
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        before = compiled_models(folder)
        yield folder
        _remove_unneeded(before, new=compiled_models(folder) - before)
    finally:
        os.close(handle)


def ensure_private(folder: Path) -> None:
    """Create the folder if it does not exist. Raise PermissionError if it belongs to another user
    or others may write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(
            f"{folder} can be written to by others: set TMPDIR to a folder of your own"
        )


def compiled_models(folder: Path) -> set[Path]:
    """Return the compiled models under a folder."""
    return set(folder.rglob("*.blob"))


def _remove_unneeded(before: set[Path], new: set[Path]) -> None:
    """If there are `new` compiled models of this version, remove those of `before`; otherwise mark
    those as used. Then remove the least recently used compiled models in the whole cache, but no
    new one, until the cache is within its limit."""
    for old in before:
        # another instance may have just removed it, here and below
        with contextlib.suppress(FileNotFoundError):
            if new:
                old.unlink()
            else:
                os.utime(old)
    stats = {}
    for path in compiled_models(cache_root()):
        with contextlib.suppress(FileNotFoundError):
            stats[path] = path.stat()
    latest_first = sorted(stats, key=lambda path: stats[path].st_mtime, reverse=True)
    total = 0
    for path in latest_first:
        total += stats[path].st_size
        if total > LIMIT_BYTES and path not in new:
            path.unlink(missing_ok=True)
