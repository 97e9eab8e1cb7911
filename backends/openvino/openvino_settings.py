"""config.pbtxt's `parameters`, with the names and meanings of NVIDIA's backend (openvino_backend, README.md).

INFERENCE_PRECISION_HINT is OpenVINO's own property, and no parameter of NVIDIA's backend. OpenVINO is not imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from instance import default_threads, given_parameters, read  # type: ignore[import-not-found]  # Triton's stub puts this folder on its path

YES_OR_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
HINTS = {hint.lower(): hint for hint in ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")}
PRECISIONS = {"f32": "f32", "bf16": "bf16", "f16": "f16"}
CAPABILITIES = {"bf16": "BF16", "f16": "FP16"}  # precision -> what a device that has it lists as a capability
IGNORED = {"COMPILATION_NUM_THREADS": "OpenVINO compiles for a processor with the threads of the inference"}
READ = (
    *("CPU_EXTENSION_PATH", "ENABLE_BATCH_PADDING", "HINT_BF16", "INFERENCE_NUM_THREADS", "INFERENCE_PRECISION_HINT"),
    *("NUM_STREAMS", "PERFORMANCE_HINT", "RESHAPE_IO_LAYERS", "SKIP_OV_DYNAMIC_BATCHSIZE", "TARGET_DEVICE"),
)
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
