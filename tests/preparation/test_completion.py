"""Which configurations say all, and where Triton is told not to complete them."""

from pathlib import Path

import pytest

from serving.host.tritonserver import backend_directory
from serving.preparation.completion import is_complete, is_needless
from serving.settings.table import Settings
from tests.support.harness import ROOT

X = 'input { name: "x" data_type: TYPE_FP32 dims: [1] }'
Y = 'output [ { name: "y" data_type: TYPE_FP32 dims: [1] reshape { shape: [] } } ]'
ONNX = 'platform: "onnxruntime_onnx"'


def write(model: Path, config: str | None, code: str = "") -> Path:
    (model / "1").mkdir(parents=True)
    if config is not None:
        (model / "config.pbtxt").write_text(config)
    if code:
        (model / "1/model.py").write_text(code)
    return model


@pytest.mark.parametrize(
    ("config", "complete"),
    [
        (f"{ONNX} {X} {Y}", True),
        (f'backend: "python"\n{X}{X.replace("x", "z")}\n{Y} # input {{ }}', True),
        (f"{ONNX} {X.replace('input {', 'input: [ {').replace('}', '} ]')} {Y}", True),
        (f'{ONNX} {X} {Y} parameters {{ key: "a" value {{ string_value: "input {{ }}" }} }}', True),
        (None, False),
        ("", False),
        (ONNX, False),
        (f"{X} {Y}", False),
        (f"{ONNX} {X}", False),
        (f"{ONNX} {X} output [ ]", False),
        (f"{ONNX} {X} {Y.replace('dims: [1]', '')}", False),
        (f"{ONNX} {X} {Y.replace('data_type: TYPE_FP32', '')}", False),
        (f"{ONNX} {X} ensemble_scheduling {{ step {{ {Y} }} }}", False),
    ],
)
def test_a_configuration_is_complete_with_a_backend_inputs_and_outputs(
    config: str | None, complete: bool, tmp_path: Path
) -> None:
    assert is_complete(write(tmp_path / "net", config), "cpu") == complete


def test_a_model_that_completes_its_configuration_itself_is_never_complete(tmp_path: Path) -> None:
    code = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config): ...\n"
    assert not is_complete(write(tmp_path / "net", f'backend: "python" {X} {Y}', code), "cpu")


def test_the_configuration_for_a_cpu_counts_on_a_cpu(tmp_path: Path) -> None:
    model = write(tmp_path / "net", ONNX)
    (model / "configs").mkdir()
    (model / "configs/cpu.pbtxt").write_text(f"{ONNX} {X} {Y}")
    assert (is_complete(model, "cpu"), is_complete(model, "gpu")) == (True, False)


def settings(repository: Path, **more: str) -> Settings:
    return Settings.from_env({"SERVE_MODEL_REPOSITORY": str(repository), "SERVE_DEVICE": "cpu"} | more)


def test_triton_completes_nothing_where_all_models_say_all(tmp_path: Path) -> None:
    assert is_needless(settings(ROOT / "model_repository"), backend_directory())
    write(tmp_path / "net", f"{ONNX} {X} {Y}")
    assert is_needless(settings(tmp_path), backend_directory())
    write(tmp_path / "bare", ONNX)
    assert not is_needless(settings(tmp_path), backend_directory())


@pytest.mark.parametrize("platform", ["tensorrt_plan", "tensorflow_savedmodel"])
def test_backends_that_are_not_python_complete_more_than_what_is_missing(platform: str, tmp_path: Path) -> None:
    write(tmp_path / "net", f'platform: "{platform}" {X} {Y}')
    assert not is_needless(settings(tmp_path), backend_directory())


def test_models_that_may_come_later_may_leave_things_out(tmp_path: Path) -> None:
    write(tmp_path / "net", f"{ONNX} {X} {Y}")
    polled = settings(tmp_path, SAGEMAKER_TRITON_ADDITIONAL_ARGS="--model-control-mode=poll")
    assert not is_needless(polled, backend_directory())


def test_archives_are_completed_here_where_all_backends_are_python(tmp_path: Path) -> None:
    several = settings(tmp_path, SAGEMAKER_MULTI_MODEL="true")
    assert is_needless(several, backend_directory())
    for name in ("python", "tensorrt"):
        (tmp_path / "backends" / name).mkdir(parents=True)
    assert not is_needless(several, tmp_path / "backends")


def test_of_a_repository_that_is_yet_to_be_made_nothing_is_known(tmp_path: Path) -> None:
    assert not is_needless(settings(tmp_path / "made by the rebuild of plans"), backend_directory())
