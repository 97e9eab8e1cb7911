"""Creates ONNX Runtime's session for an instance: its options, its threads, its execution provider.

The parameters and their defaults are the same as in NVIDIA's backend
(triton-inference-server/onnxruntime_backend, src/onnxruntime.cc), with three exceptions:
`separate_runs` is added, the default number of threads is the container's processor limit rather
than the machine's number of processors, and waiting threads spin only briefly.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort

try:
    from instance import (
        default_threads,
        give_back_memory,
        parameter_texts,
        parse_bool,
        read_parameter,
    )  # in Triton's stub, beside this file
except ModuleNotFoundError:  # outside Triton's stub, for build_engines
    from backends._shared.instance import (
        default_threads,
        give_back_memory,
        parameter_texts,
        parse_bool,
        read_parameter,
    )

CACHE_BYTES = 1 << 20  # the L2 cache of one core: 1 to 2 MB on today's servers (lscpu)
VALUE_BYTES = 4  # bytes of a value: models compute in FP32, even if the pixels are UINT8
CPU = ("CPUExecutionProvider",)
DISABLED = 2  # the value of optimization.graph.level in config.pbtxt that turns optimization off
# the parameters that `build --set` accepts: those that this backend reads, and those that only
# NVIDIA's backend reads
PARAMETERS = (
    "intra_op_thread_count",
    "inter_op_thread_count",
    "execution_mode",
    "enable_mem_arena",
    "enable_mem_pattern",
    "separate_runs",
    "memory.enable_memory_arena_shrinkage",
    "cudnn_conv_algo_search",
    "gpu_mem_limit",
    "arena_extend_strategy",
    "cudnn_conv_use_max_workspace",
    "do_copy_in_default_stream",
)
EXECUTION_MODES = {"0": False, "1": True}  # whether operators run in parallel
SPINNING, SPIN_TIME = "session.intra_op.allow_spinning", "session.intra_op.spin_duration_us"
# how many microseconds a waiting thread spins: long enough to bridge the gap between two operators,
# but not that between two runs
BRIEF_SPIN = {SPIN_TIME: "20"}
FATAL = 4  # the log severity with which ONNX Runtime logs only fatal errors
OPTIMIZATION_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    DISABLED: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


@dataclass(frozen=True)
class SessionSettings:
    """The settings of a session, from config.pbtxt. NVIDIA's backend has all of them too, except
    `separate_runs`."""

    intra_op_threads: int = 1
    inter_op_threads: int = 0
    parallel: bool = False
    level: int = 0
    memory_arena: bool = True
    memory_pattern: bool = True
    separate_runs: bool = False
    config_entries: tuple[tuple[str, str], ...] = ()  # ONNX Runtime's own names and values

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "SessionSettings":
        """Read config.pbtxt. Raise a ValueError that names the parameter if a value is invalid."""
        parameters = parameter_texts(config)
        intra = read_parameter(parameters, "intra_op_thread_count", int, 0)
        inter = read_parameter(parameters, "inter_op_thread_count", int, 0)
        threads = intra if intra > 0 else default_threads()
        parse_mode = EXECUTION_MODES.__getitem__
        graph = config.get("optimization", {}).get("graph", {})
        session_parameters = sorted(
            (name, value) for name, value in parameters.items() if name.startswith("session.")
        )
        return cls(
            intra_op_threads=threads,
            inter_op_threads=max(0, inter),
            parallel=read_parameter(parameters, "execution_mode", parse_mode, False),
            level=graph.get("level", 0),
            memory_arena=read_parameter(parameters, "enable_mem_arena", parse_bool, True),
            memory_pattern=read_parameter(parameters, "enable_mem_pattern", parse_bool, True),
            separate_runs=separate_runs(config, parameters, threads),
            config_entries=tuple(session_parameters),
        )

    def options(self) -> ort.SessionOptions:
        """Return ONNX Runtime's options. By default, waiting threads spin only briefly, because
        several models share the processors."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.intra_op_threads
        if self.parallel:
            options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
            options.inter_op_num_threads = self.inter_op_threads or self.intra_op_threads
        options.graph_optimization_level = OPTIMIZATION_LEVELS.get(
            self.level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        )
        options.enable_cpu_mem_arena = self.memory_arena
        options.enable_mem_pattern = self.memory_pattern
        entries = {"session.inter_op.allow_spinning": "0", **dict(self.config_entries)}
        if not entries.keys() & {SPINNING, SPIN_TIME}:
            entries |= BRIEF_SPIN
        for key, value in entries.items():
            options.add_session_config_entry(key, value)
        return options


def separate_runs(config: Mapping[str, Any], parameters: Mapping[str, str], threads: int) -> bool:
    """Return whether `threads` or more merged requests each get a run of their own, on one thread,
    in parallel with the others. Runs in model.py explains why.

    Return False on a GPU, without dynamic batching, with one thread, or with more threads than rows
    in a batch. Otherwise the parameter `separate_runs` decides, whose default is true if a row does
    not fit into the cache.
    """
    most_rows = int(config["max_batch_size"]) if "dynamic_batching" in config else 0
    kinds = [group["kind"] for group in config.get("instance_group", ())]
    is_large = sum(map(row_bytes, config.get("input", ()))) > CACHE_BYTES
    is_wanted = bool(read_parameter(parameters, "separate_runs", parse_bool, is_large))
    return is_wanted and 1 < threads <= most_rows and "KIND_GPU" not in kinds


def row_bytes(entry: Mapping[str, Any]) -> int:
    """Return the size in bytes of one row of an input in config.pbtxt, as FP32. A dynamic dimension
    counts as 1."""
    return VALUE_BYTES * math.prod(abs(int(size)) for size in entry["dims"])


UNOPTIMIZED = SessionSettings(level=DISABLED)


def run_options() -> ort.RunOptions:
    """Return the options for every run. Errors are returned to the caller, so they are not logged
    too."""
    options = ort.RunOptions()
    options.log_severity_level = FATAL
    return options


def providers(args: Mapping[str, str]) -> list[Any]:
    """Return the execution providers: CUDA and the CPU if the instance is on a GPU and this
    onnxruntime supports CUDA, and otherwise only the CPU."""
    if (
        args["model_instance_kind"] == "GPU"
        and "CUDAExecutionProvider" in ort.get_available_providers()
    ):
        cuda = ("CUDAExecutionProvider", {"device_id": args["model_instance_device_id"]})
        return [cuda, *CPU]
    return list(CPU)


def load(path: Path, settings: SessionSettings, execution_providers: Sequence[Any] = CPU) -> Any:
    """Create the session of the file `path`, or of model.onnx if `path` is a folder. Raise
    ValueError if the file is invalid, and FileNotFoundError if it is missing."""
    file = path / "model.onnx" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"unable to find '{file}'")
    try:
        session = ort.InferenceSession(
            str(file), settings.options(), providers=list(execution_providers)
        )
    except Exception as err:  # ONNX Runtime's exceptions have no common base class
        raise ValueError(f"ONNX Runtime cannot load '{file}': {err}") from err
    give_back_memory()
    return session
