"""Tests the number of an instance's threads (machines are simulated by folders), the session's
options, and memory."""

import math
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from backends._shared.instance import (
    cgroup_quota,
    default_threads,
    explain_missing,
    give_back_memory,
)
from backends.onnxruntime.onnx_session import SessionSettings

pytestmark = pytest.mark.unit


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
def test_read_the_quota_of_the_control_group(
    tmp_path: Path, files: dict[str, str], expected: float
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_quota(tmp_path) == expected


def test_take_threads_from_the_variable_or_the_cpu_affinity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SERVE_INFERENCE_THREADS", "7")
    assert default_threads() == 7
    monkeypatch.setenv("SERVE_INFERENCE_THREADS", "0")
    assert 1 <= default_threads() <= len(os.sched_getaffinity(0))
    assert SessionSettings.from_config({}).intra_op_threads == default_threads()


def test_name_a_missing_library_and_say_what_to_do() -> None:
    with (
        pytest.raises(ModuleNotFoundError) as raised,
        explain_missing("the backend x needs Y", "install Y"),
    ):
        __import__("no_such")
    assert "'no_such'" in str(raised.value) and "install Y" in str(raised.value)


def test_return_freed_memory_to_the_system() -> None:
    # each is too small for a memory mapping of its own
    blocks = [bytes(100_000) + b"x" for _ in range(1000)]
    last = blocks[-1]
    del blocks
    before = psutil.Process().memory_info().rss
    give_back_memory()
    assert before - psutil.Process().memory_info().rss > 50e6
    assert len(last) == 100_001


def test_take_the_options_from_the_configuration() -> None:
    texts = {
        "intra_op_thread_count": "3",
        "inter_op_thread_count": "2",
        "execution_mode": "1",
        "enable_mem_arena": "0",
        "enable_mem_pattern": "False",
        "session.intra_op.allow_spinning": "1",
        "session.intra_op.spin_duration_us": "5",
    }
    parameters = {name: {"string_value": value} for name, value in texts.items()}
    options = SessionSettings.from_config({"parameters": parameters}).options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"
    assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "5"
    usual = SessionSettings.from_config({}).options()
    assert usual.get_session_config_entry("session.intra_op.spin_duration_us") == "20"


def test_name_a_wrong_parameter_and_its_value() -> None:
    wrong = {"parameters": {"intra_op_thread_count": {"string_value": "many"}}}
    with pytest.raises(ValueError, match=r"'intra_op_thread_count'.*'many'"):
        SessionSettings.from_config(wrong)


LARGE, SMALL = ["3", "640", "640"], ["3", "224", "224"]


@pytest.mark.parametrize(
    ("dims", "threads", "changes", "separate"),
    [
        (LARGE, "2", {}, True),
        (SMALL, "2", {}, False),
        (
            ["3", "512", "512"],
            "2",
            {"input": [{"data_type": "TYPE_UINT8", "dims": ["3", "512", "512"]}]},
            True,
        ),
        (["-1"], "2", {}, False),
        (SMALL, "2", {"parameters": {"separate_runs": {"string_value": "1"}}}, True),
        (LARGE, "2", {"parameters": {"separate_runs": {"string_value": "0"}}}, False),
        (LARGE, "1", {}, False),
        (LARGE, "16", {}, False),
        (LARGE, "2", {"instance_group": [{"kind": "KIND_GPU"}]}, False),
        (LARGE, "2", {"max_batch_size": 0}, False),
    ],
)
def test_run_large_rows_separately_on_few_threads(
    dims: list[str],
    threads: str,
    changes: dict[str, Any],
    separate: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SERVE_INFERENCE_THREADS", threads)
    config = {
        "max_batch_size": 8,
        "dynamic_batching": {},
        "input": [{"data_type": "TYPE_FP32", "dims": dims}],
    }
    assert SessionSettings.from_config(config | changes).separate_runs == separate
