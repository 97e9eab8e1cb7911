"""config.pbtxt's `parameters`, with the names and meanings of NVIDIA's backend (openvino_backend, README.md).

INFERENCE_PRECISION_HINT is OpenVINO's own property, and no parameter of NVIDIA's backend. OpenVINO is not imported.

OpenVINO finds a compiled model in the cache folder by the model, the properties, the processor and its own version, and
compiles again when the file is incomplete. A compiled model is code, so it is kept only in folders that nobody else may
write to.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

try:
    from instance import default_threads, given_parameters, read  # type: ignore[import-not-found]  # in Triton's stub, beside this file
except ModuleNotFoundError:  # build_engines takes the options from here
    from backends._shared.instance import default_threads, given_parameters, read

YES_OR_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
HINTS = {hint.lower(): hint for hint in ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")}
PRECISIONS = {"f32": "f32", "bf16": "bf16", "f16": "f16"}
CAPABILITIES = {"bf16": "BF16", "f16": "FP16"}  # precision -> what a device that has it lists as a capability
IGNORED = {"COMPILATION_NUM_THREADS": "OpenVINO compiles for a processor with the threads of the inference"}
READ = (
    *("CPU_EXTENSION_PATH", "ENABLE_BATCH_PADDING", "HINT_BF16", "INFERENCE_NUM_THREADS", "INFERENCE_PRECISION_HINT"),
    *("NUM_STREAMS", "PERFORMANCE_HINT", "RESHAPE_IO_LAYERS", "SKIP_OV_DYNAMIC_BATCHSIZE", "TARGET_DEVICE"),
)
LIMIT_BYTES = 4 << 30  # of all models: in multi-model mode they come and go for as long as the container lives
TRITONS = ("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS")  # of the Python backend, on which this one runs


@dataclass(frozen=True)
class OpenvinoSettings:
    """The defaults are NVIDIA's, except the number of threads, which follows the container's limit."""

    device: str = "CPU"
    threads: int = 1
    hint: str = "LATENCY"
    streams: str = ""
    precision: str = ""
    extension: str = ""
    fixed_batch: bool = False
    padding: bool = False
    reshape: bool = False
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "OpenvinoSettings":
        """ValueError names a parameter with a wrong value, and the allowed values."""
        given = given_parameters(config)
        threads = read(given, "INFERENCE_NUM_THREADS", _count, 0, "a whole number; 0: the default")
        return cls(
            device=given.get("TARGET_DEVICE", "CPU").upper(),
            threads=threads or default_threads(),
            hint=_one_of(given, "PERFORMANCE_HINT", HINTS, "LATENCY"),
            streams=read(given, "NUM_STREAMS", _streams, "", "a whole number from 1, AUTO or NUMA"),
            precision=_precision(given),
            extension=given.get("CPU_EXTENSION_PATH", ""),
            fixed_batch=_switch(given, "SKIP_OV_DYNAMIC_BATCHSIZE") and config["max_batch_size"] > 0,
            padding=_switch(given, "ENABLE_BATCH_PADDING"),
            reshape=_switch(given, "RESHAPE_IO_LAYERS"),
            warnings=tuple(_warnings(given)),
        )

    def properties(self, capabilities: list[str]) -> dict[str, Any]:
        """OpenVINO's, on a device with these capabilities.

        Threads are not pinned: those of several models would be pinned to the same processors.
        """
        found: dict[str, Any] = {"PERFORMANCE_HINT": self.hint}
        if self.device == "CPU":
            found |= {"INFERENCE_NUM_THREADS": self.threads, "ENABLE_CPU_PINNING": False}
        if self.streams:
            found["NUM_STREAMS"] = self.streams
        if self.precision:
            found["INFERENCE_PRECISION_HINT"] = "f32" if self.lacks(capabilities) else self.precision
        return found

    def lacks(self, capabilities: list[str]) -> bool:
        """Whether the device has no instructions for the precision that was asked for: it would be slower than f32."""
        return CAPABILITIES.get(self.precision, "") not in ("", *capabilities)


def _one_of(given: Mapping[str, str], name: str, allowed: Mapping[str, Any], default: Any) -> Any:
    return read(given, name, lambda text: allowed[text.lower()], default, ", ".join(map(str, allowed.values())))


def _switch(given: Mapping[str, str], name: str) -> bool:
    return bool(read(given, name, lambda text: YES_OR_NO[text.lower()], False, "YES, NO"))


def _precision(given: Mapping[str, str]) -> str:
    hinted = read(
        given,
        "HINT_BF16",
        lambda text: {"yes": "bf16"}[text.lower()],
        "",
        "YES; INFERENCE_PRECISION_HINT f32 forbids it",
    )
    return str(_one_of(given, "INFERENCE_PRECISION_HINT", PRECISIONS, hinted))


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _streams(text: str) -> str:
    if text.upper() in ("AUTO", "NUMA") or _count(text) > 0:
        return text.upper()
    raise ValueError(text)


def _warnings(given: Mapping[str, str]) -> list[str]:
    """Of parameters without effect. Those in small letters are the clients', which a backend does not know."""
    unknown = [name for name in given if name.isupper() and name not in (*READ, *IGNORED, *TRITONS)]
    ignored = [f"parameter '{name}' has no effect: {reason}" for name, reason in IGNORED.items() if name in given]
    return ignored + [
        f"parameter '{name}' is unknown, so it has no effect; known: {', '.join(READ)}" for name in unknown
    ]


def root() -> Path:
    """Return the folder of this container's compiled models."""
    return Path(os.environ.get("TMPDIR") or "/tmp") / "serve-engines/openvino"


@contextmanager
def opened(model: str, version: str) -> Iterator[Path]:
    """The folder of one version, which no other instance uses meanwhile; OSError when there can be none."""
    folder = root() / quote(model, safe="") / version
    for each in (root().parent, root(), folder.parent, folder):
        own(each)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        before = blobs(folder)
        yield folder
        _tidy(folder, before)
    finally:
        os.close(handle)


def own(folder: Path) -> None:
    """Makes it; PermissionError for a folder that others may write to."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} can be written to by others: set TMPDIR to a folder of your own")


def blobs(folder: Path) -> set[Path]:
    """The compiled models below it."""
    return set(folder.rglob("*.blob"))


def _tidy(folder: Path, before: set[Path]) -> None:
    """Marks what was used or, when there is something new, removes what was there of the same version before it and,
    past the limit of all models, the oldest."""
    new = blobs(folder) - before
    for old in before:
        if new:
            old.unlink(missing_ok=True)
        else:
            os.utime(old)
    found = sorted(((path.stat(), path) for path in blobs(root())), key=lambda each: -each[0].st_mtime)
    total = 0
    for stat, path in found:
        total += stat.st_size
        if total > LIMIT_BYTES and path not in new:
            path.unlink(missing_ok=True)
