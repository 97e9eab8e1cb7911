"""Detects the resources of this machine or container: processors, memory, shared memory, GPUs.

The limits come from control groups (v2 or v1). Of the process's own group and all groups above it,
the lowest limit counts. Every function accepts the root of the file system, so that tests can
simulate a machine in a folder.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True)
class Machine:
    """The resources of a machine. `cpus` is the number of processors, which may be fractional;
    `memory` is in bytes."""

    cpus: float
    memory: int
    gpu: bool


def this_machine(root: Path = ROOT) -> Machine:
    return Machine(cpus=cpu_quota(root), memory=memory_limit(root), gpu=has_gpu(root))


def cpu_quota(root: Path = ROOT) -> float:
    """Return how many processors this process may use. This is the quota of its control group, or
    the number of processors that its CPU affinity allows, whichever is lower."""
    pairs = [
        *_limits(root, "", "cpu.max"),
        *_limits(root, "cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
    ]
    limited = [pair for pair in pairs if len(pair) == 2 and min(pair) > 0]  # -1 means no limit
    quotas = [quota / period for quota, period in limited]
    return min([float(len(os.sched_getaffinity(0))), *quotas])


def memory_limit(root: Path = ROOT) -> int:
    """Return how many bytes of memory this process may use. This is the limit of its control group,
    or the memory of the machine, whichever is lower."""
    limits = [*_limits(root, "", "memory.max"), *_limits(root, "memory", "memory.limit_in_bytes")]
    lines = (root / "proc/meminfo").read_text().splitlines()
    totals = [line for line in lines if line.startswith("MemTotal:")]
    kilobytes = int(totals[0].split()[1])
    limited = [limit for limit in chain.from_iterable(limits) if limit > 0]
    return min([1024 * kilobytes, *limited])


def has_gpu(root: Path = ROOT) -> bool:
    """Return whether there is an NVIDIA GPU."""
    return gpu_count(root) > 0


def processor_features(root: Path = ROOT) -> frozenset[str]:
    """Return the instruction sets of this processor under Linux's names (avx512f, amx_bf16). Return
    an empty set if Linux lists none."""
    with (
        contextlib.suppress(OSError),
        (root / "proc/cpuinfo").open(encoding="utf-8", errors="replace") as file,
    ):
        for line in file:  # only the first processor is read; the others have the same features
            name, _, words = line.partition(":")
            if name.strip() in ("flags", "Features"):  # on x86 and on arm64
                return frozenset(words.split())
    return frozenset()


def gpu_count(root: Path = ROOT) -> int:
    """Return the number of NVIDIA GPUs. Inside a container, only the GPUs that were assigned to it
    are visible."""
    names = [path.name for path in (root / "dev").glob("nvidia*")]  # nvidia0, nvidiactl, …
    return sum(name.removeprefix("nvidia").isdecimal() for name in names)


def shm_size(root: Path = ROOT) -> int:
    """Return the size in bytes of /dev/shm, through which Triton and its Python backends exchange
    tensors. Return 0 if it is missing."""
    try:
        filesystem = os.statvfs(root / "dev/shm")
    except OSError:
        return 0
    return filesystem.f_blocks * filesystem.f_frsize


def oom_kills(root: Path = ROOT) -> int | None:
    """Return how many processes in this process's control group the OOM killer has killed, or None
    if that is unknown."""
    files = [folder / "memory.events" for folder in _cgroup_folders(root, "")]
    files += [folder / "memory.oom_control" for folder in _cgroup_folders(root, "memory")]
    for file in files:
        with contextlib.suppress(OSError, ValueError, KeyError):
            lines = file.read_text().splitlines()
            counts = dict(line.split() for line in lines)
            return int(counts["oom_kill"])
    return None


def _limits(root: Path, controller: str, *files: str) -> Iterator[list[int]]:
    """Yield the numbers in `files` for each control group that has these files."""
    for folder in _cgroup_folders(root, controller):
        # ignore a group in which a file is missing or contains "max", which means no limit
        with contextlib.suppress(OSError, ValueError):
            texts = [(folder / file).read_text() for file in files]
            yield [int(word) for word in " ".join(texts).split()]


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the process's control group and of all its ancestors. In a container
    without a cgroup namespace only the topmost folder exists."""
    group = Path()
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)  # `controllers` is "" for version 2
            if controller in controllers.split(","):
                group = Path(path.lstrip("/"))
    for folder in (group, *group.parents):
        if ".." not in folder.parts:  # else the group is outside the namespace, and has no folder
            yield root / "sys/fs/cgroup" / controller / folder
