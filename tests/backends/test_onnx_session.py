"""How many threads an instance takes, from machines laid out in a folder; the session's options."""

import math
import os
from pathlib import Path

import pytest

from backends._shared.instance import cgroup_quota, default_threads
from backends.onnxruntime.onnx_session import SessionSettings


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({"cpu.max": "nonsense\n"}, math.inf),
        ({}, math.inf),
    ],
)
def test_the_quota_of_the_control_group_is_read(tmp_path: Path, files: dict[str, str], expected: float) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_quota(tmp_path) == expected


def test_the_variable_decides_and_the_cpu_affinity_bounds_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVE_INFERENCE_THREADS", "7")
    assert default_threads() == 7
    monkeypatch.setenv("SERVE_INFERENCE_THREADS", "0")
    assert 1 <= default_threads() <= len(os.sched_getaffinity(0))
    assert SessionSettings.from_config({}).intra_op_threads == default_threads()


def test_the_options_are_those_of_the_configuration() -> None:
    given = {
        "intra_op_thread_count": "3",
        "inter_op_thread_count": "2",
        "execution_mode": "1",
        "enable_mem_arena": "0",
        "enable_mem_pattern": "False",
        "session.intra_op.allow_spinning": "1",
    }
    parameters = {name: {"string_value": value} for name, value in given.items()}
    options = SessionSettings.from_config({"parameters": parameters}).options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"
    assert "PARALLEL" in str(options.execution_mode)


@pytest.mark.parametrize(
    ("name", "value"), [("execution_mode", "2"), ("intra_op_thread_count", "two"), ("enable_mem_arena", "on")]
)
def test_a_wrong_parameter_is_named_with_its_value(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"parameter '{name}' has a wrong value: '{value}'"):
        SessionSettings.from_config({"parameters": {name: {"string_value": value}}})
