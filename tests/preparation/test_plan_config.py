"""The configuration of a TensorRT model turned into one for ONNX Runtime, and into what is built."""

from pathlib import Path
from typing import Any

from serving.preparation.plan_config import onnx_config, wanted_build
from serving.repository.fingerprint import Build, Fingerprint, Hardware
from serving.repository.model_config import parse_config
from serving.repository.plans import PlanModel, Version
from serving.settings.table import Settings

CONFIG = """
name: "net" platform: "tensorrt_plan" max_batch_size: 16
input { name: "ids" data_type: TYPE_INT64 dims: [-1] } input { name: "image" data_type: TYPE_FP32 dims: [3, 8, 8] }
output { name: "y" data_type: TYPE_FP32 dims: [10] label_filename: "labels.txt" }
instance_group { count: 2 kind: KIND_GPU gpus: [0] profile: ["0"] }
dynamic_batching { preferred_batch_size: [8] }
optimization { cuda { graphs: true } }
parameters { key: "client" value { string_value: "bert" } }
"""


def turned(text: str = CONFIG, setting: str = "onnxruntime", gpu: bool = True, precision: str = "fp16") -> Any:
    version = Version("1", True, "abc", Fingerprint(Hardware("Tesla T4"), Build("abc", precision)))
    settings = Settings(tensorrt=setting, device="gpu" if gpu else "cpu", engine_cache=Path("/cache"))
    return parse_config(onnx_config(PlanModel(Path("net"), parse_config(text), ()), [version], settings))


def test_it_is_the_same_but_for_the_backend() -> None:
    before, after = parse_config(CONFIG), turned()
    assert (after.platform, after.backend) == ("onnxruntime_onnx", "")
    for field in ("name", "max_batch_size", "input", "output", "dynamic_batching", "parameters"):
        assert getattr(after, field) == getattr(before, field), field
    (group,) = after.instance_group
    assert (group.count, group.Kind.Name(group.kind), list(group.gpus), list(group.profile)) == (2, "KIND_GPU", [0], [])
    assert not after.optimization.HasField("cuda")


def test_a_backend_of_its_name_is_replaced_too() -> None:
    after = turned(
        CONFIG.replace('platform: "tensorrt_plan"', 'backend: "tensorrt" default_model_filename: "net.plan"')
    )
    assert (after.platform, after.backend, after.default_model_filename) == ("onnxruntime_onnx", "", "net.onnx")


def test_without_a_gpu_it_runs_on_the_processor() -> None:
    (group,) = turned(gpu=False, setting="onnxruntime_tensorrt").instance_group
    assert (group.Kind.Name(group.kind), list(group.gpus)) == ("KIND_CPU", [])
    assert not turned(gpu=False, setting="onnxruntime_tensorrt").optimization.HasField("execution_accelerators")


def test_the_tensorrt_provider_is_asked_for_by_name() -> None:
    for precision, mode in (("fp32", "FP32"), ("fp16", "FP16"), ("int8", "FP16")):
        after = turned(setting="onnxruntime_tensorrt", precision=precision)
        (provider,) = after.optimization.execution_accelerators.gpu_execution_accelerator
        assert provider.name == "tensorrt"
        assert dict(provider.parameters) == {
            "precision_mode": mode,
            "trt_engine_cache_enable": "true",
            "trt_engine_cache_path": "/cache",
        }
    assert not turned().optimization.HasField("execution_accelerators")


def test_every_input_of_a_model_with_batches_varies() -> None:
    build = wanted_build(parse_config(CONFIG), Version("1", False, "abc", None))
    assert build == Build(
        "abc", "fp32", {"ids": ((1, 1), (8, 128), (16, 512)), "image": ((1, 3, 8, 8), (8, 3, 8, 8), (16, 3, 8, 8))}
    )


def test_of_a_model_without_batches_only_what_has_no_fixed_shape_varies() -> None:
    build = wanted_build(
        parse_config(CONFIG.replace("max_batch_size: 16", "max_batch_size: 0")), Version("1", False, "abc", None)
    )
    assert build.profile == {"ids": ((1,), (128,), (512,))}
