"""Tests that a build loads its model into a real tritonserver and sends it its example."""

from pathlib import Path

import onnx
import pytest

from build_engines.publish import try_in_tritonserver
from build_engines.request import Request
from serving.host.machine import has_gpu
from serving.repository.model_config import read_config
from tests.backends.openvino_models import half
from tests.build_engines.models import run, save_classifier
from tests.support.harness import save_graph

pytestmark = pytest.mark.stack


def build(tmp_path: Path, file: Path, *words: str) -> int:
    own = f"build own --weights {file} --for cpu --out {tmp_path}/models"
    return run(f"{own} {' '.join(words)}")


def save_matrix(file: Path, x: str, columns: int) -> Path:
    """Save a model that flattens x to rows of `columns` values and multiplies them with a matrix.
    The first dimension of its output y is called n."""
    ones = ", ".join(["1.0"] * 3 * columns)
    graph = f"""matrix ({x} x) => (float[n, 3] y) <float[{columns}, 3] w = {{{ones}}}> {{
        flat = Flatten (x)
        y = MatMul (flat, w)
    }}"""
    return save_graph(graph, file)


def test_configure_an_output_called_variable_as_computed(tmp_path: Path) -> None:
    assert build(tmp_path, save_matrix(tmp_path / "own.onnx", "float[1, 4]", 4)) == 0
    config = read_config(tmp_path / "models/own", "gpu")
    assert (config.max_batch_size, list(config.output[0].dims)) == (0, [1, 3])


@pytest.mark.parametrize(
    ("length", "first", "batch", "dims"),
    [("length", 1, 0, [[-1, 1], [1, 1, 2]]), ("batch", "batch", 8, [[1], [1, 2]])],
)
def test_configure_a_state_beside_an_input_of_any_length(
    length: str, first: int | str, batch: int, dims: list[list[int]], tmp_path: Path
) -> None:
    graph = f"""state (float[{length}, 4] x, float[{first}, 1, 2] h) =>
        (float[{length}, 1] y, float[{first}, state, size] hn) {{
        y = ReduceMax <axes = [1]> (x)
        hn = Mul (h, h)
    }}"""
    assert build(tmp_path, save_graph(graph, tmp_path / "own.onnx")) == 0
    config = read_config(tmp_path / "models/own", "gpu")
    assert (config.max_batch_size, [list(each.dims) for each in config.output]) == (batch, dims)


def test_build_for_openvino_a_file_that_leaves_a_computed_size_free(tmp_path: Path) -> None:
    (tmp_path / "own.onnx").write_bytes(half())
    assert build(tmp_path, tmp_path / "own.onnx", "--set", "cpu_engine=openvino") == 0
    config = read_config(tmp_path / "models/own", "cpu")
    assert config.parameters["cpu_engine"].string_value == "openvino"
    assert list(config.output[0].dims) == [-1]


def test_refuse_to_build_a_model_that_fails_on_its_example(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save_matrix(tmp_path / "own.onnx", "float[n, 3, h, w]", 48)
    words = ("--client", "image-classification", "--set", "size=8")
    assert build(tmp_path, file, *words) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and ".build-" not in errors
    assert not (tmp_path / "models").exists()
    assert build(tmp_path, file, *words, "--no-load") == 0


def test_say_which_ir_version_onnx_runtime_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save_matrix(tmp_path / "own.onnx", "float[n, 4]", 4)
    model = onnx.load(file)
    model.ir_version = onnx.IR_VERSION
    assert onnx.IR_VERSION > 13
    onnx.save(model, file)
    assert build(tmp_path, file) == 1
    assert "set the ONNX model's ir_version to 13" in capsys.readouterr().err


def built(tmp_path: Path, target: str) -> tuple[Path, Request]:
    """Build a classifier without loading it. Return its folder, and a request for it."""
    file = save_classifier(tmp_path / "own.onnx")
    assert build(tmp_path, file, "--for", target, "--no-load") == 0
    request = Request("own", repository=tmp_path / "models", target=target)
    return request.model_folder, request


def test_build_without_tritonserver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> set[str]:
        raise FileNotFoundError("no tritonserver here")

    try_in_tritonserver(*built(tmp_path, "cpu"), missing)
    assert "not loaded: no tritonserver here" in capsys.readouterr().out


def test_build_but_do_not_load_for_a_missing_backend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try_in_tritonserver(*built(tmp_path, "cpu"), lambda: {"python"})
    assert "'onnxruntime'" in capsys.readouterr().out


def test_name_the_configuration_that_was_loaded_only_if_one_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, request = built(tmp_path, "gpu")
    try_in_tritonserver(folder, request, lambda: {"python"})
    assert "CPU configuration" not in capsys.readouterr().out
    try_in_tritonserver(folder, request)
    assert ("loaded with its CPU configuration" in capsys.readouterr().out) == (not has_gpu())
