"""How much memory the loaded models take, what one more would take, and which errors mean that there is none left."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# What a model takes beside its weights, in bytes: a plain Python stub has 17 MB of its own, with numpy and ONNX
# Runtime 30 MB, and 1 MB of shared memory per instance.
PER_MODEL = 32 * 1024 * 1024
# Weights are read and then packed for the processor: a ResNet-50 of 102 MB takes 2 to 4 times that.
PER_BYTE_OF_FILES = 2

# Texts of frameworks, of Triton and of the system; those of Triton's SageMaker endpoint are all among them.
OUT_OF_MEMORY = (
    r"CUDA out of memory",
    r"CUDA_OUT_OF_MEMORY",
    r"(?i:out of memory)",
    r"MemoryError",
    r"OutOfMemory",
    r"(?<![A-Za-z])OOM(?![a-z])",  # not in BLOOM, nor in a model's name like ROOM_3
    r"Dst tensor is not initialized",
    r"Src tensor is not initialized",
    r"CNMEM_STATUS_OUT_OF_MEMORY",
    r"CUDNN_STATUS_NOT_INITIALIZED",
    r"CUBLAS_STATUS_ALLOC_FAILED",
    r"CUBLAS_STATUS_NOT_INITIALIZED",
    r"[Ff]ailed to allocate memory",
    r"No space left on device",
    r"Cannot allocate memory",
    r"bad_alloc",
    r"RESOURCE_EXHAUSTED",
    r"Failed to increase the shared memory pool size",
)
_OUT_OF_MEMORY = re.compile("|".join(OUT_OF_MEMORY))


def is_out_of_memory(message: str) -> bool:
    """Whether an error's text says that memory, or another resource that unloading frees, was short."""
    return bool(_OUT_OF_MEMORY.search(message))


@dataclass(frozen=True)
class Budget:
    """Bytes that Triton and its models may take."""

    limit: int

    def shortfall(self, used: int, needed: int) -> str:
        """Why `needed` bytes more than `used` are too many, in words; "" when they are not."""
        if used + needed <= self.limit:
            return ""
        megabytes = [f"{number / 2**20:.0f} MB" for number in (needed, used, self.limit)]
        return (
            f"the model would take about {megabytes[0]}, those loaded take {megabytes[1]} of the {megabytes[2]} that "
            "they may take; unload others, or raise SERVE_MODEL_MEMORY_SHARE or the container's memory"
        )


def estimate(weight: int, models: int) -> int:
    """Bytes that `models` models with files of `weight` bytes in all will take."""
    return models * PER_MODEL + PER_BYTE_OF_FILES * weight


def used_by(pid: int, proc: Path = Path("/proc")) -> int:
    """Bytes of memory of a process and all below it that the kernel cannot take back: their own pages, and what
    the topmost shares with the others. 0 when the process is gone."""
    return sum(_bytes(proc, each, "RssAnon") for each in tree(pid, proc)) + _bytes(proc, pid, "RssShmem")


def tree(pid: int, proc: Path = Path("/proc")) -> Iterator[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)):
            children.setdefault(parent, []).append(int(entry.name))
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += children.get(each, [])


def _parent(entry: Path) -> int:
    """From /proc/PID/stat, where the program's name in brackets may hold anything."""
    try:
        return int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _bytes(proc: Path, pid: int, field: str) -> int:
    try:
        with (proc / str(pid) / "status").open() as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)
    except OSError:
        return 0
