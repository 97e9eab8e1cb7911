"""`--set NAME=VALUE`: is there such a setting of the client, or parameter of a backend?"""

from collections.abc import Iterable

from build_engines.errors import UsageError
from serving.inference.registry import family
from serving.named_value import unknown

ONNXRUNTIME = (
    "intra_op_thread_count inter_op_thread_count execution_mode enable_mem_arena enable_mem_pattern separate_runs "
    "memory.enable_memory_arena_shrinkage cudnn_conv_algo_search gpu_mem_limit arena_extend_strategy "
    "cudnn_conv_use_max_workspace do_copy_in_default_stream cpu_engine"
)
OPENVINO = (
    "PERFORMANCE_HINT NUM_STREAMS INFERENCE_NUM_THREADS INFERENCE_PRECISION_HINT HINT_BF16 RESHAPE_IO_LAYERS "
    "SKIP_OV_DYNAMIC_BATCHSIZE ENABLE_BATCH_PADDING TARGET_DEVICE CPU_EXTENSION_PATH COMPILATION_NUM_THREADS"
)
PYTORCH = (
    "INFERENCE_MODE DISABLE_OPTIMIZED_EXECUTION ENABLE_JIT_EXECUTOR ENABLE_JIT_PROFILING ENABLE_TENSOR_FUSER "
    "INTRA_OP_THREAD_COUNT INTER_OP_THREAD_COUNT ENABLE_WEIGHT_SHARING ENABLE_CACHE_CLEANING DISABLE_CUDNN "
    "ENABLE_NVFUSER"
)
OF_BACKENDS = {*ONNXRUNTIME.split(), *OPENVINO.split(), *PYTORCH.split()}  # docs/backends.md
SESSION = "session."  # any of ONNX Runtime's own


def check_settings(client: str, names: Iterable[str]) -> None:
    """UsageError with the nearest name for one that neither the client ("": none) nor a backend has."""
    own = _settings_of(client) if client else set()
    whose = f"the client '{client}'" if client else "a backend (name the --client for its own)"
    for name in names:
        if name not in own | OF_BACKENDS and not name.startswith(SESSION):
            raise UsageError(f"--set {name}: {unknown(f'setting of {whose}', name, own or OF_BACKENDS)}")


def _settings_of(client: str) -> set[str]:
    return {each.name for each in (*family(client).settings, *family(client).parameters)}
