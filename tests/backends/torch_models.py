"""Scripts small TorchScript models, and makes the repository that the tests' tritonserver
serves."""

from pathlib import Path

import torch
from torch import Tensor, nn

from tests.backends.onnx_models import MERGED, ONE, parameters, tensors


class Weighted(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """Returns y = x W and z = x + 1. The weights have a megabyte, so the memory of a process shows
    whether it shares them."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(512, 512, generator=generator))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ self.weight, x + 1


class Difference(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    def forward(self, minuend: Tensor, subtrahend: Tensor) -> Tensor:
        return minuend - subtrahend


class OfDictionary(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    def forward(self, tensors: dict[str, Tensor]) -> Tensor:
        return tensors["minuend"] - tensors["subtrahend"]


class Datatypes(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    def forward(
        self, a: Tensor, b: Tensor, c: Tensor, d: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return a, b, c, d


class Reused(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """Returns its input in a buffer that it reuses for every call. Fails for a negative number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        if bool((x < 0).any()):
            raise ValueError("a negative number")
        result = self.memory[: x.numel()].view(x.shape)
        return result.copy_(x)


class Texts(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    def forward(self, texts: list[str]) -> list[str]:
        return [text + "!" for text in texts]


BATCHES = f'platform: "pytorch_libtorch"\nmax_batch_size: 8\n{MERGED}'


# the datatypes of the arguments a, b, c and d
FOUR = ("BOOL", "FP16", "INT64", "UINT8")
TEXT = '{} {{ name: "{}" data_type: TYPE_STRING dims: [ 1 ] reshape {{ shape: [ ] }} }}\n'
EXECUTOR = parameters(
    INTRA_OP_THREAD_COUNT="3",
    INTER_OP_THREAD_COUNT="2",
    ENABLE_JIT_EXECUTOR="false",
    ENABLE_JIT_PROFILING="0",
    ENABLE_TENSOR_FUSER="False",
    DISABLE_OPTIMIZED_EXECUTION="TRUE",
    ENABLE_CACHE_CLEANING="1",
)

ALONE = BATCHES + ONE
RESULT = tensors("output", result="FP32 -1")

# name of a model -> (module, config.pbtxt)
SERVED: dict[str, tuple[nn.Module, str]] = {
    "weighted": (
        Weighted(),
        ALONE
        + tensors("input", INPUT__0="FP32 512")
        + tensors("output", OUTPUT__1="FP32 512", OUTPUT__0="FP32 512"),
    ),
    "weighted_twice": (
        Weighted(),
        BATCHES
        + "instance_group { count: 2 kind: KIND_CPU }\n"
        + EXECUTOR
        + tensors("input", x="FP32 512")
        + tensors("output", OUTPUT__0="FP32 512"),
    ),
    "by_argument": (
        Difference(),
        ALONE + tensors("input", subtrahend="FP32 -1", minuend="FP32 -1") + RESULT,
    ),
    "by_dictionary": (
        OfDictionary(),
        'backend: "pytorch"\n'
        + ONE
        + 'default_model_filename: "other.pt"\n'
        + tensors("input", subtrahend="FP32 -1", minuend="FP32 -1")
        + RESULT,
    ),
    "reused": (Reused(), ALONE + tensors("input", x="FP32 -1") + RESULT),
    "datatypes": (
        Datatypes(),
        ALONE
        + tensors("input", **{f"in_{name}": f"{name} -1" for name in FOUR})
        + tensors("output", **{f"out_{name}": f"{name} -1" for name in FOUR}),
    ),
    "texts": (
        Texts(),
        ALONE + TEXT.format("input", "INPUT__0") + TEXT.format("output", "OUTPUT__0"),
    ),
}

# name of a model that must not load -> (module, or None for a file that is not TorchScript,
# config.pbtxt, a word of the reason)
REFUSED: dict[str, tuple[nn.Module | None, str, str]] = {
    "bad_file": (
        None,
        ALONE + tensors("input", INPUT__0="FP32 -1") + tensors("output", OUTPUT__0="FP32 -1"),
        "bad_file/1/model.pt",
    ),
    "bad_config": (Difference(), ALONE, "config.pbtxt"),
    "bad_sharing": (
        Difference(),
        ALONE
        + parameters(ENABLE_WEIGHT_SHARING="true")
        + tensors("input", INPUT__0="FP32 -1", INPUT__1="FP32 -1")
        + tensors("output", OUTPUT__0="FP32 -1"),
        "parameter 'ENABLE_WEIGHT_SHARING' ('true') is not supported: take one instance",
    ),
    "bad_names": (
        Difference(),
        ALONE + tensors("input", INPUT__0="FP32 -1", INPUT__2="FP32 -1") + RESULT,
        "INPUT__0, INPUT__2",
    ),
    "bad_parameter": (
        Difference(),
        ALONE
        + tensors("input", a="FP32 -1", b="FP32 -1")
        + RESULT
        + parameters(INFERENCE_MODE="maybe"),
        "'INFERENCE_MODE'",
    ),
}


def write_repository(folder: Path) -> None:
    for name, (module, config, *_) in (SERVED | REFUSED).items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
        file = folder / name / "1" / ("other.pt" if "other.pt" in config else "model.pt")
        if module is None:
            torch.save({"weight": torch.zeros(3)}, file)
        else:
            torch.jit.script(module).save(str(file))
