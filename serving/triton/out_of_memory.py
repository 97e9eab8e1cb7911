"""Which errors mean that memory, or another resource that unloading models frees, is short."""

import re

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
