"""config.pbtxt as it is written: golden files, and Triton's own parser over all of them."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from build_engines.model_folder import TORCHSCRIPT, ModelSpec, data_type, model_config, render
from build_engines.request import Request
from build_engines.weights.onnx_files import DATATYPES
from clients.base import TensorSpec

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).parent / "golden"
IMAGE = ModelSpec(
    "resnet",
    (TensorSpec("input", "FP32", (3, 224, 224)),),
    (TensorSpec("logits", "FP32", (1000,)),),
    32,
    {"mean": "0.5", "std": "0.25"},
    labels="labels.txt",
    note="A comment\nof two lines.",
)
TEXT = ModelSpec(
    "bert",
    tuple(TensorSpec(name, "INT64", (-1,)) for name in ("input_ids", "attention_mask")),
    (TensorSpec("last_hidden_state", "FP32", (-1, 384)),),
    16,
    {"task": "embedding"},
)
TENSORS = ModelSpec(
    "", (TensorSpec("INPUT__0", "FP16", (1, 4)),), (TensorSpec("OUTPUT__0", "BYTES", (-1,)),), 0, platform=TORCHSCRIPT
)
CASES: dict[str, tuple[ModelSpec, str, str, Request]] = {
    "image_gpu": (IMAGE, "onnxruntime_onnx", "KIND_GPU", Request("")),
    "text": (TEXT, "onnxruntime_onnx", "KIND_CPU", Request("", instances=4)),
    "torchscript": (TENSORS, TORCHSCRIPT, "KIND_CPU", Request("")),
}


def rendered(name: str) -> str:
    model_spec, platform, kind, serving = CASES[name]
    return render(model_config(model_spec, platform, kind, 2, serving), model_spec.note)


@pytest.mark.parametrize("name", CASES)
def test_the_configuration_is_the_golden_one(name: str) -> None:
    """After a change that is meant: python -m tests.build_engines.model_folder.test_config"""
    assert rendered(name) == (GOLDEN / f"{name}.pbtxt").read_text()


def test_there_is_no_golden_file_without_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.pbtxt")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_triton_reads_what_was_meant(name: str) -> None:
    model_spec, platform, kind, serving = CASES[name]
    config: Any = text_format.Parse(rendered(name), ModelConfig())
    assert config == model_config(model_spec, platform, kind, 2, serving)
    assert [tuple(tensor.dims) for tensor in config.input] == [spec.shape or (1,) for spec in model_spec.inputs]
    assert [tensor.data_type for tensor in config.output] == [data_type(spec.datatype) for spec in model_spec.outputs]


def test_every_datatype_of_onnx_is_one_of_triton() -> None:
    assert len({data_type(datatype) for datatype in DATATYPES.values()}) == len(DATATYPES)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for case in CASES:
        (GOLDEN / f"{case}.pbtxt").write_text(rendered(case))
