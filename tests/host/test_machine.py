"""A machine laid out in a folder: control groups of both versions, memory, devices."""

import os
from pathlib import Path

import pytest

from serving.host.machine import cpu_quota, has_gpu, memory_limit, oom_kills, processor_features, shm_size, this_machine

pytestmark = pytest.mark.unit

CPUS = len(os.sched_getaffinity(0))
GIB = 1024**3


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal:       8388608 kB\nMemFree: 1 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_processor_s_features_are_those_that_linux_lists(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu avx512f amx_bf16\nvmx flags\t: vnmi\n"})
    assert processor_features(tmp_path) == {"fpu", "avx512f", "amx_bf16"}
    write(tmp_path, {"proc/cpuinfo": "processor\t: 0\nFeatures\t: asimd bf16\n"})
    assert processor_features(tmp_path) == {"asimd", "bf16"}
    assert processor_features(tmp_path / "none") == frozenset()


def test_without_a_control_group_the_machine_itself_counts(tmp_path: Path) -> None:
    write(tmp_path, {})
    assert (cpu_quota(tmp_path), memory_limit(tmp_path)) == (CPUS, 8 * GIB)


def test_version_2_in_a_container_has_its_limits_at_the_root(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/memory.max": f"{GIB}\n",
        },
    )
    assert (cpu_quota(tmp_path), memory_limit(tmp_path)) == (0.5, GIB)


def test_version_2_takes_the_smallest_limit_of_all_groups_above(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/main\n",
            "sys/fs/cgroup/pod/cpu.max": "25000 100000\n",
            "sys/fs/cgroup/pod/main/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/pod/main/memory.max": "max\n",
        },
    )
    assert (cpu_quota(tmp_path), memory_limit(tmp_path)) == (0.25, 2 * GIB)


def test_version_1_counts_and_its_no_limit_is_none(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n1:name=systemd:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "75000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": f"{3 * GIB}\n",
        },
    )
    assert (cpu_quota(tmp_path), memory_limit(tmp_path)) == (0.75, 3 * GIB)


def test_version_1_without_a_quota_has_minus_one(tmp_path: Path) -> None:
    write(tmp_path, {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"})
    assert cpu_quota(tmp_path) == CPUS


def test_a_quota_above_the_affinity_is_the_affinity(tmp_path: Path) -> None:
    write(tmp_path, {"sys/fs/cgroup/cpu.max": "99900000 100000\n"})
    assert cpu_quota(tmp_path) == CPUS


@pytest.mark.parametrize("text", ["", "rubbish", "max", "0 100000", "100000 0"])
def test_an_unreadable_limit_is_none(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"sys/fs/cgroup/cpu.max": text, "sys/fs/cgroup/memory.max": text.partition(" ")[0]})
    assert cpu_quota(tmp_path) == CPUS
    assert memory_limit(tmp_path) in (8 * GIB, 100000)


def test_a_group_outside_of_the_namespace_does_not_lead_out_of_the_mount(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/cpu.max": "20000 100000\n"})
    assert cpu_quota(tmp_path) == 0.2


def test_a_gpu_is_its_device(tmp_path: Path) -> None:
    assert not has_gpu(write(tmp_path, {}))
    assert has_gpu(write(tmp_path, {"dev/nvidiactl": ""}))


def test_shared_memory_is_0_where_there_is_none(tmp_path: Path) -> None:
    assert shm_size(tmp_path) == 0
    assert shm_size() > 0


def test_this_machine_can_be_read() -> None:
    machine = this_machine()
    assert 0 < machine.cpus <= CPUS and machine.memory > 0


@pytest.mark.parametrize(
    ("group", "file", "text"),
    [
        ("0::/pod\n", "pod/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"),
        ("0::/elsewhere\n", "memory.events", "oom_kill 2\n"),
        ("5:memory:/docker\n", "memory/docker/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
    ],
)
def test_both_versions_tell_who_was_killed_for_memory(tmp_path: Path, group: str, file: str, text: str) -> None:
    write(tmp_path, {"proc/self/cgroup": group, f"sys/fs/cgroup/{file}": text})
    assert oom_kills(tmp_path) == 2


def test_where_nobody_tells_of_memory_kills_there_are_none(tmp_path: Path) -> None:
    assert oom_kills(write(tmp_path, {"sys/fs/cgroup/memory.events": "nonsense\n"})) is None
