"""Describes a model that a family has written, and the engine built from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from clients.base import TensorSpec

# Triton's platforms
ONNX = "onnxruntime_onnx"
TORCHSCRIPT = "pytorch_libtorch"
PLAN = "tensorrt_plan"
MODEL_FILES = {ONNX: "model.onnx", TORCHSCRIPT: "model.pt", PLAN: "model.plan"}


def full_shape(tensor: TensorSpec, batch: int, length: int) -> tuple[int, ...]:
    """Return the tensor's shape with `batch` in front (0: no batch dimension), and `length` for
    each dimension that varies."""
    sizes = tuple(length if size == -1 else size for size in tensor.shape)
    return (batch, *sizes) if batch else sizes


@dataclass(frozen=True)
class ModelSpec:
    """Describes a model whose folder has 1/model.onnx in fp32 (or 1/model.pt) and, if the family
    provides them, labels and an example.

    `client` is the name of a module in clients/, or "" for none. `settings` become `parameters` in
    config.pbtxt. A `max_batch_size` of 0 means that there is no batch dimension. `lengths` are the
    minimum, typical and maximum size of a dimension of -1. `labels` is the file that names each
    value of the first output. `note` is a comment for config.pbtxt.
    """

    client: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    max_batch_size: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    platform: str = ONNX
    lengths: tuple[int, int, int] = (1, 128, 512)
    labels: str = ""
    note: str = ""

    @property
    def cpu_instances(self) -> int:
        """Return the number of instances on a CPU: 1 if the backend merges waiting requests into
        runs that use all processors, and otherwise 2."""
        # Measured with 1 and 2 instances (ONNX Runtime, two processors). Photos from 8 callers: 106
        # and 108/s, p99 98 and 134 ms. Texts of 128 tokens from 16 callers: 51 and 47/s. Memory:
        # 556 and 894 MB.
        return 1 if self.platform == ONNX and self.max_batch_size else 2

    @property
    def parameters(self) -> dict[str, str]:
        """Return the `parameters` of config.pbtxt, except those of the engine."""
        named = {"client": self.client} if self.client else {}
        return named | dict(self.settings)

    @property
    def file(self) -> str:
        """Return the name of the model's file."""
        return MODEL_FILES[self.platform]

    def profile(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Return the minimum, typical and maximum shape of each input, including the batch
        dimension if there is one."""
        largest = self.max_batch_size
        batches = (0, 0, 0)  # full_shape then adds no batch dimension
        if largest:
            batches = (1, max(largest // 2, 1), largest)
        sizes = list(zip(batches, self.lengths, strict=True))
        shapes = {}
        for spec in self.inputs:
            shapes[spec.name] = tuple(full_shape(spec, batch, length) for batch, length in sizes)
        return shapes


@dataclass(frozen=True)
class Engine:
    """Describes what serves the model: a TensorRT plan that was built from 1/model.onnx, or the
    ONNX or TorchScript file itself, which may be quantized.

    `bound_to` names what the engine depends on, such as the GPU and the version of TensorRT
    ("engine" in build.json). `runs_on_cpu` is true if the engine always runs on a CPU.
    `cpu_parameters` go into the configuration for a CPU. `accelerator` contains the parameters of
    ONNX Runtime's TensorRT provider for the configuration for a GPU.
    """

    platform: str
    precision: str
    bound_to: Mapping[str, str] = field(default_factory=dict)
    preferred_batch_sizes: tuple[int, ...] = ()
    runs_on_cpu: bool = False
    cpu_parameters: Mapping[str, str] = field(default_factory=dict)
    accelerator: Mapping[str, str] = field(default_factory=dict)
