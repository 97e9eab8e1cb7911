"""Tests reading config.pbtxt, and recognizing which ones contain everything that Triton needs."""

import subprocess
import sys
from pathlib import Path

import pytest

from serving.repository.completion import is_complete
from serving.repository.model_config import Unreadable, backend_of, parse_config, read_config
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

X = 'input { name: "x" data_type: TYPE_FP32 dims: [1] }'
Y = 'output [ { name: "y" data_type: TYPE_FP32 dims: [1] reshape { shape: [] } } ]'
ONNX = 'platform: "onnxruntime_onnx"'
WHOLE = f"{ONNX} {X} {Y}"


def write(model: Path, config: str | None, code: str = "") -> Path:
    (model / "1").mkdir(parents=True)
    if config is not None:
        (model / "config.pbtxt").write_text(config)
    if code:
        (model / "1/model.py").write_text(code)
    return model


@pytest.mark.parametrize(
    ("config", "backend"),
    [
        ('platform: "onnxruntime_onnx"', "onnxruntime"),
        ("backend: 'tensorrt'", "tensorrt"),
        ('platform: "ensemble"', "ensemble"),
        ("ensemble_scheduling { step { model_name: 'part' } }", "ensemble"),
        ("# platform: 'ensemble'", ""),
    ],
)
def test_derive_the_backend_from_platform_backend_or_steps(config: str, backend: str) -> None:
    assert backend_of(parse_config(config)) == backend


@pytest.mark.parametrize("file", ["config.pbtxt", "configs/cpu.pbtxt"])
@pytest.mark.parametrize(
    ("text", "reason"), [(b"max_batch_size: 1\n max_batchsize: 1", "2:2"), (b"\xff", "utf-8")]
)
def test_name_the_file_and_line_of_an_unreadable_configuration(
    file: str, text: bytes, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "configs").mkdir()
    for each in ("config.pbtxt", "configs/cpu.pbtxt"):
        (tmp_path / each).write_bytes(text if each == file else b"max_batch_size: 4")
    with pytest.raises(Unreadable) as caught:
        read_config(tmp_path, "cpu")
    assert f"{tmp_path}/{file}" in str(caught.value) and reason in str(caught.value)


def test_read_a_configuration_without_importing_grpc() -> None:
    code = (
        "import sys, serving.repository.model_config\n"
        "assert 'grpc' not in sys.modules\n"
        "import tritonclient.grpc\n"
        "assert tritonclient.grpc.model_config_pb2.ModelConfig is "
        "serving.repository.model_config.ModelConfig"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("config", "complete"),
    [
        (WHOLE, True),
        (f'backend: "python"\n{X}{X.replace("x", "z")}\n{Y} # input {{ }}', True),
        (f"{ONNX} {X.replace('input {', 'input: [ {').replace('}', '} ]')} {Y}", True),
        (f'{WHOLE} parameters {{ key: "a" value {{ string_value: "input {{ }}" }} }}', True),
        ("", False),
        (ONNX, False),
        (f"{X} {Y}", False),
        (f"{ONNX} {X} {Y.replace('dims: [1]', '')}", False),
        (f"{ONNX} {X} {Y.replace('data_type: TYPE_FP32', '')}", False),
        (f"platform: 'ensemble' ensemble_scheduling {{ step {{ }} }} {X} {Y}", True),
        (f"ensemble_scheduling {{ step {{ }} }} {X} {Y}", False),
    ],
)
def test_treat_a_configuration_with_backend_and_tensors_as_complete(
    config: str | None, complete: bool, tmp_path: Path
) -> None:
    model = write(tmp_path / "net", config)
    assert is_complete(model, read_config(model, "cpu")) == complete


def test_never_treat_a_self_completing_model_as_complete(tmp_path: Path) -> None:
    code = (
        "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config): ...\n"
    )
    model = write(tmp_path / "net", f'backend: "python" {X} {Y}', code)
    assert not is_complete(model, read_config(model, "cpu"))


MERGED = [
    (
        "instance_group { kind: KIND_GPU } instance_group { }",
        "instance_group { kind: KIND_CPU }",
        None,
    ),
    ("max_batch_size: 8", "max_batch_size: 0", ""),
    ("dynamic_batching { preferred_batch_size: 4 }", "dynamic_batching { }", None),
    ("sequence_batching { }", "dynamic_batching { }", None),
    ('default_model_filename: "a.onnx"', 'backend: "openvino"', f'backend: "openvino" {X} {Y}'),
    ('default_model_filename: "a.onnx"', 'default_model_filename: "b.onnx"', None),
    ("", "max_batch_size: 4", "max_batch_size: 4"),
    (
        "parameters { key: 'a' value { string_value: '1' } } parameters { key: 'b' value { "
        "string_value: '2' } }",
        "parameters { key: 'b' value { string_value: '3' } }",
        "parameters { key: 'a' value { string_value: '1' } } parameters { key: 'b' value { "
        "string_value: '3' } }",
    ),
]


@pytest.mark.parametrize(("base", "own", "expected"), MERGED)
def test_override_the_first_file_with_the_second(
    base: str, own: str, expected: str | None, tmp_path: Path
) -> None:
    """`expected` is the result without backend, input and output; None means that it equals
    `own`."""
    model = write(tmp_path / "net", f"{WHOLE} {base}")
    (model / "configs").mkdir()
    (model / "configs/cpu.pbtxt").write_text(own)
    more = own if expected is None else expected
    whole = more if "backend:" in more else f"{WHOLE} {more}"
    assert read_config(model, "cpu") == parse_config(whole)
    assert read_config(model, "gpu") == parse_config(f"{WHOLE} {base}")


def test_take_a_second_file_with_tensors_as_a_whole_configuration(tmp_path: Path) -> None:
    model = write(tmp_path / "net", f"{WHOLE} dynamic_batching {{ }} max_batch_size: 8")
    (model / "configs").mkdir()
    (model / "configs/cpu.pbtxt").write_text(f'backend: "python" {X} {Y}')
    assert read_config(model, "cpu") == parse_config(f'backend: "python" {X} {Y}')
