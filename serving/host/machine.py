"""What this machine, or this container, gives us: processors, memory, shared memory, a GPU.

A container's limits stand in its control group, not in /proc: cgroup v2 (`cpu.max`, `memory.max`) or v1
(`cpu.cfs_quota_us`, `memory.limit_in_bytes`). The smallest limit on the way from the process's own group up
to the root counts. Every function takes the file system's root, so that tests lay out a machine in a folder.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
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
    """Processors that this process may use: its control group's quota, at most its CPU affinity."""
    available = float(len(os.sched_getaffinity(0)))
    quotas = [*_limits(root, "", _read_cpu_max), *_limits(root, "cpu", _read_cfs_quota)]
    return min([available, *quotas])


def memory_limit(root: Path = ROOT) -> int:
    """Bytes that this process may use: its control group's limit, at most the machine's memory."""
    limits = [*_limits(root, "", _read_memory_max), *_limits(root, "memory", _read_limit_in_bytes)]
    return int(min([_total_memory(root), *limits]))


def has_gpu(root: Path = ROOT) -> bool:
    """Whether an NVIDIA GPU's device is there, as the container toolkit or the driver makes it."""
    return any((root / name).exists() for name in ("dev/nvidia0", "dev/nvidiactl"))


def gpu_count(root: Path = ROOT) -> int:
    """How many NVIDIA GPUs there are; a container has the devices of its own only."""
    return sum(path.name.removeprefix("nvidia").isdecimal() for path in (root / "dev").glob("nvidia*"))


def shm_size(root: Path = ROOT) -> int:
    """Bytes of /dev/shm, through which Triton and its python backends hand tensors; 0 when it is missing."""
    try:
        filesystem = os.statvfs(root / "dev/shm")
    except OSError:
        return 0
    return filesystem.f_blocks * filesystem.f_frsize


def oom_kills(root: Path = ROOT) -> int:
    """How many processes of the control group the kernel has killed for want of memory; 0 where it does not tell."""
    files = [folder / "memory.events" for folder in _cgroup_folders(root, "")]
    files += [folder / "memory.oom_control" for folder in _cgroup_folders(root, "memory")]
    for file in files:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return int(dict(line.split() for line in file.read_text().splitlines())["oom_kill"])
    return 0


def _limits(root: Path, controller: str, read: Callable[[Path], float | None]) -> Iterator[float]:
    for folder in _cgroup_folders(root, controller):
        try:
            limit = read(folder)
        except (OSError, ValueError, ZeroDivisionError):
            continue
        if limit is not None and limit > 0:
            yield limit


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """The process's group and all above it; without a cgroup namespace only the topmost exists in here."""
    mount = root / "sys/fs/cgroup" / controller
    group = Path(_cgroup_path(root, controller).lstrip("/"))
    for path in (group, *group.parents):
        if ".." not in path.parts:
            yield mount / path


def _cgroup_path(root: Path, controller: str) -> str:
    """From /proc/self/cgroup, lines of `ID:CONTROLLERS:PATH`; version 2 has no controllers there."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return "/"
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return path
    return "/"


def _read_cpu_max(folder: Path) -> float | None:
    quota, period = (folder / "cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _read_cfs_quota(folder: Path) -> float | None:
    quota = int((folder / "cpu.cfs_quota_us").read_text())
    return None if quota < 0 else quota / int((folder / "cpu.cfs_period_us").read_text())


def _read_memory_max(folder: Path) -> float | None:
    limit = (folder / "memory.max").read_text().strip()
    return None if limit == "max" else int(limit)


def _read_limit_in_bytes(folder: Path) -> float | None:
    return int((folder / "memory.limit_in_bytes").read_text())


def _total_memory(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no MemTotal in /proc/meminfo")
