"""Tests the detection of a machine that is laid out in a folder: control groups of both versions,
memory, devices."""

import os
from pathlib import Path

import pytest

from serving.host.machine import (
    cpu_quota,
    has_gpu,
    memory_limit,
    oom_kills,
    processor_features,
    shm_size,
    this_machine,
)

pytestmark = pytest.mark.unit

CPUS = len(os.sched_getaffinity(0))
GIB = 1024**3


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {
        "proc/meminfo": "MemTotal:       8388608 kB\nMemFree: 1 kB\n",
        **files,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_read_the_features_of_a_processor_from_linux(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu avx512f amx_bf16\nvmx flags\t: vnmi\n"},
    )
    assert processor_features(tmp_path) == {"fpu", "avx512f", "amx_bf16"}
    write(tmp_path, {"proc/cpuinfo": "processor\t: 0\nFeatures\t: asimd bf16\n"})
    assert processor_features(tmp_path) == {"asimd", "bf16"}
    assert processor_features(tmp_path / "none") == frozenset()


V2, V1 = "sys/fs/cgroup/{}", "sys/fs/cgroup/cpu/cpu.cfs_{}_us"
UNLIMITED = "9223372036854771712\n"
GROUPS: dict[str, tuple[dict[str, str], float, float]] = {  # name: (files, processors, GiB)
    "none": ({}, CPUS, 8),
    "the root's": (
        {
            "proc/self/cgroup": "0::/\n",
            V2.format("cpu.max"): "50000 100000\n",
            V2.format("memory.max"): f"{GIB}\n",
        },
        0.5,
        1,
    ),
    "the smallest of all groups above": (
        {
            "proc/self/cgroup": "0::/pod/main\n",
            V2.format("pod/cpu.max"): "25000 100000\n",
            V2.format("pod/main/cpu.max"): "max 100000\n",
            V2.format("pod/memory.max"): f"{2 * GIB}\n",
            V2.format("pod/main/memory.max"): "max\n",
        },
        0.25,
        2,
    ),
    "version 1": (
        {
            "proc/self/cgroup": "5:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n1:name=systemd:/\n",
            V1.format("quota"): "75000\n",
            V1.format("period"): "100000\n",
            V2.format("memory/memory.limit_in_bytes"): UNLIMITED,
            V2.format("memory/docker/1/memory.limit_in_bytes"): f"{3 * GIB}\n",
        },
        0.75,
        3,
    ),
    "version 1 without a quota": ({V1.format("quota"): "-1\n"}, CPUS, 8),
    "above the affinity": ({V2.format("cpu.max"): "99900000 100000\n"}, CPUS, 8),
    "outside of the namespace": (
        {"proc/self/cgroup": "0::/../../x\n", V2.format("cpu.max"): "20000 100000\n"},
        0.2,
        8,
    ),
}


@pytest.mark.parametrize(("files", "cpus", "gibibytes"), GROUPS.values(), ids=GROUPS)
def test_read_the_limits_of_the_control_group(
    files: dict[str, str], cpus: float, gibibytes: float, tmp_path: Path
) -> None:
    write(tmp_path, files)
    assert (cpu_quota(tmp_path), memory_limit(tmp_path)) == (cpus, gibibytes * GIB)


@pytest.mark.parametrize("text", ["", "rubbish", "max", "0 100000", "100000 0"])
def test_return_none_for_an_unreadable_limit(tmp_path: Path, text: str) -> None:
    write(
        tmp_path,
        {"sys/fs/cgroup/cpu.max": text, "sys/fs/cgroup/memory.max": text.partition(" ")[0]},
    )
    assert cpu_quota(tmp_path) == CPUS
    assert memory_limit(tmp_path) in (8 * GIB, 100000)


def test_find_a_gpu_by_its_device_and_shared_memory_by_its_mount(tmp_path: Path) -> None:
    assert not has_gpu(write(tmp_path, {"dev/nvidiactl": ""}))
    assert has_gpu(write(tmp_path, {"dev/nvidia0": ""}))
    assert (shm_size(tmp_path), shm_size() > 0) == (0, True)
    machine = this_machine()
    assert 0 < machine.cpus <= CPUS and machine.memory > 0


@pytest.mark.parametrize(
    ("group", "file", "text", "kills"),
    [
        ("0::/pod\n", "pod/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("0::/elsewhere\n", "memory.events", "oom_kill 2\n", 2),
        ("0::/\n", "memory.events", "nonsense\n", None),
        (
            "5:memory:/docker\n",
            "memory/docker/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            2,
        ),
    ],
)
def test_count_kills_for_memory(
    tmp_path: Path, group: str, file: str, text: str, kills: int | None
) -> None:
    write(tmp_path, {"proc/self/cgroup": group, f"sys/fs/cgroup/{file}": text})
    assert oom_kills(tmp_path) == kills
