"""What this machine or this container has: processors, memory, shared memory, a GPU.

Limits are those of the control group (v2 or v1): the smallest from the process's own group up to
the root counts. Every function takes the file system's root, so that tests can lay out a machine in
a folder.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True)
class Machine:
    """`cpus` in processors (1.5 is one and a half), `memory` in bytes."""

    cpus: float
    memory: int
    gpu: bool


def this_machine(root: Path = ROOT) -> Machine:
    return Machine(cpus=cpu_quota(root), memory=memory_limit(root), gpu=has_gpu(root))


def cpu_quota(root: Path = ROOT) -> float:
    """Return how many processors this process may use: its control group's quota, at most its CPU
    affinity."""
    pairs = [
        *_limits(root, "", "cpu.max"),
        *_limits(root, "cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
    ]
    limited = [pair for pair in pairs if len(pair) == 2 and min(pair) > 0]
    quotas = [quota / period for quota, period in limited]
    return min([float(len(os.sched_getaffinity(0))), *quotas])


def memory_limit(root: Path = ROOT) -> int:
    """Return how many bytes this process may use: its control group's limit, at most the machine's
    memory."""
    groups = [*_limits(root, "", "memory.max"), *_limits(root, "memory", "memory.limit_in_bytes")]
    lines = (root / "proc/meminfo").read_text().splitlines()
    line = next(line for line in lines if line.startswith("MemTotal:"))
    total = int(line.split()[1]) * 1024
    return min([total, *(limit for limits in groups for limit in limits if limit > 0)])


def has_gpu(root: Path = ROOT) -> bool:
    """Return whether there is an NVIDIA GPU."""
    return gpu_count(root) > 0


def processor_features(root: Path = ROOT) -> frozenset[str]:
    """Return the instruction sets of this processor by Linux's names (avx512f, amx_bf16); none if
    Linux lists none."""
    with (
        contextlib.suppress(OSError),
        (root / "proc/cpuinfo").open(encoding="utf-8", errors="replace") as file,
    ):
        for line in file:  # of the first processor: the others are equal
            name, _, words = line.partition(":")
            if name.strip() in ("flags", "Features"):  # of x86, of arm64
                return frozenset(words.split())
    return frozenset()


def gpu_count(root: Path = ROOT) -> int:
    """Return how many NVIDIA GPUs there are; a container has the devices of its own only."""
    return sum(
        path.name.removeprefix("nvidia").isdecimal() for path in (root / "dev").glob("nvidia*")
    )


def shm_size(root: Path = ROOT) -> int:
    """Return the bytes of /dev/shm, through which Triton and its Python backends pass tensors; 0 if
    it is missing."""
    try:
        filesystem = os.statvfs(root / "dev/shm")
    except OSError:
        return 0
    return filesystem.f_blocks * filesystem.f_frsize


def oom_kills(root: Path = ROOT) -> int | None:
    """Return how many processes of the control group the kernel killed because memory was short;
    None if unknown."""
    files = [folder / "memory.events" for folder in _cgroup_folders(root, "")]
    files += [folder / "memory.oom_control" for folder in _cgroup_folders(root, "memory")]
    for file in files:
        with contextlib.suppress(OSError, ValueError, KeyError):
            lines = file.read_text().splitlines()
            counts = dict(line.split() for line in lines)
            return int(counts["oom_kill"])
    return None


def _limits(root: Path, controller: str, *files: str) -> Iterator[list[int]]:
    """Yield the numbers in these files, for each group that has them."""
    for folder in _cgroup_folders(root, controller):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            texts = [(folder / file).read_text() for file in files]
            yield [int(word) for word in " ".join(texts).split()]


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the process's group and all above it; without a cgroup namespace only the topmost
    exists in here."""
    group = Path()
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)  # version 2 has no controllers
            if controller in controllers.split(","):
                group = Path(path.lstrip("/"))
    for folder in (group, *group.parents):
        if ".." not in folder.parts:
            yield root / "sys/fs/cgroup" / controller / folder
