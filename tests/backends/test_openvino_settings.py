"""Tests OpenVINO's parameters in config.pbtxt, with and without BF16, and the cache of compiled
models."""

import os
from pathlib import Path
from typing import Any

import pytest

from backends.openvino import openvino_settings
from backends.openvino.openvino_settings import OpenvinoSettings

pytestmark = pytest.mark.unit

WITH_BF16, WITHOUT = ["FP32", "INT8", "BF16"], ["FP32", "INT8"]


def settings(**parameters: str) -> OpenvinoSettings:
    entries = {name: {"string_value": text} for name, text in parameters.items()}
    return OpenvinoSettings.from_config({"max_batch_size": 8, "parameters": entries})


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"PERFORMANCE_HINT": "throughput"}, {"PERFORMANCE_HINT": "THROUGHPUT"}),
        ({"NUM_STREAMS": "auto"}, {"NUM_STREAMS": "AUTO"}),
        ({"NUM_STREAMS": "3"}, {"NUM_STREAMS": "3"}),
        ({"INFERENCE_NUM_THREADS": "5"}, {"INFERENCE_NUM_THREADS": 5}),
        ({"INFERENCE_NUM_THREADS": "0"}, {"INFERENCE_NUM_THREADS": 7}),
        (
            {},
            {
                "INFERENCE_NUM_THREADS": 7,
                "PERFORMANCE_HINT": "LATENCY",
                "ENABLE_CPU_PINNING": False,
            },
        ),
        ({"INFERENCE_PRECISION_HINT": "F32"}, {"INFERENCE_PRECISION_HINT": "f32"}),
        ({"HINT_BF16": "yes"}, {"INFERENCE_PRECISION_HINT": "bf16"}),
        (
            {"HINT_BF16": "YES", "INFERENCE_PRECISION_HINT": "f32"},
            {"INFERENCE_PRECISION_HINT": "f32"},
        ),
    ],
)
def test_pass_parameters_on_as_properties(
    parameters: dict[str, str], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVE_INFERENCE_THREADS", "7")
    assert settings(**parameters).properties(WITH_BF16).items() >= expected.items()


@pytest.mark.parametrize("parameters", [{"HINT_BF16": "YES"}, {"INFERENCE_PRECISION_HINT": "f16"}])
def test_compute_in_f32_if_the_processor_lacks_the_precision(parameters: dict[str, str]) -> None:
    assert settings(**parameters).lacks_precision(WITHOUT)
    assert settings(**parameters).properties(WITHOUT)["INFERENCE_PRECISION_HINT"] == "f32"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NUM_STREAMS", "many"),
        ("TARGET_DEVICE", "NPU"),
        ("SKIP_OV_DYNAMIC_BATCHSIZE", "YES"),
        ("CPU_EXTENSION_PATH", "/nowhere.so"),
    ],
)
def test_name_a_wrong_parameter_and_its_value(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}'.*'{value}'"):
        settings(**{name: value})


def test_ignore_the_parameters_of_clients_and_triton() -> None:
    assert settings(client="resnet", EXECUTION_ENV_PATH="/x").warnings == ()
    assert "'NUM_STREAM'" in settings(NUM_STREAM="1").warnings[0]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / "serve-engines/openvino"


def test_put_the_cache_into_the_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    assert openvino_settings.cache_root() == cache
    monkeypatch.delenv("TMPDIR")
    assert openvino_settings.cache_root() == Path("/tmp/serve-engines/openvino")


def compiled(model: str, name: str, size: int = 10) -> Path:
    with openvino_settings.locked_cache(model, "1") as folder:
        path: Path = folder / f"{name}.blob"
        with path.open("wb") as blob:
            blob.truncate(size)
    return path


def test_keep_one_cache_folder_per_name_with_the_latest_model(cache: Path) -> None:
    first = compiled("../a/b", "1")
    other, second = compiled("other", "1"), compiled("../a/b", "2")
    assert openvino_settings.compiled_models(cache) == {other, second}
    assert first.parent == second.parent
    assert len(second.relative_to(cache).parts) == 3


def test_remove_the_least_recently_used_beyond_the_limit(cache: Path) -> None:
    size = openvino_settings.LIMIT_BYTES // 2
    first, second = compiled("first", "1", size), compiled("second", "1", size)
    for path, when in ((first, 1), (second, 2)):
        os.utime(path, (when, when))
    with openvino_settings.locked_cache("first", "1"):  # this model is used again
        pass
    third = compiled("third", "1", size)
    assert openvino_settings.compiled_models(cache) == {first, third}
