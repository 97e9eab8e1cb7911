"""Tests INT8 for a CPU: its size and accuracy, that Triton 24.10 knows its operators, and that
`verify` rejects a damaged engine."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from PIL import Image

from build_engines.build import build
from build_engines.build_record import reference_folder
from build_engines.comparison import verify
from build_engines.errors import BuildError, UsageError
from build_engines.measures import cosine
from build_engines.request import Request
from build_engines.runners import OnnxFile, example_feed, runner_of
from build_engines.stored_model import StoredModel, open_model
from clients.base import TensorSpec
from tests.build_engines.models import (
    build_own,
    run,
    save_classifier,
    save_digits,
    save_images,
    save_pages,
)
from tests.clients.text_models import save_checkpoint
from tests.support.harness import ROOT

pytestmark = pytest.mark.full

MODELS = ("resnet", "yolov5", "bert")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the three bundled models in INT8. Their fp32 references are in a cache beside them."""
    folder = tmp_path_factory.mktemp("int8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BUILD_ENGINES_CACHE", str(folder / "cache"))
        samples = {"resnet": save_digits(folder), "yolov5": save_pages(folder), "bert": None}
        for name in MODELS:
            build(
                Request(
                    name, precision="int8", calibration=samples[name], repository=folder / "models"
                )
            )
    return folder / "models"


@pytest.fixture
def references(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILD_ENGINES_CACHE", str(repository.parent / "cache"))


def scores(repository: Path, name: str, samples: Path | None = None) -> dict[str, Any]:
    return {score.name: score for score in verify(open_model(name, repository), None, samples, 0)}


def size(stored: StoredModel) -> int:
    return stored.file.stat().st_size


@pytest.mark.parametrize(
    ("name", "samples", "megabytes"),
    [("resnet", "digits", 1), ("yolov5", "pages", 4), ("bert", "", 25)],
)
def test_get_the_same_answers_from_each_engine_of_bundled_models(
    name: str, samples: str, megabytes: int, repository: Path, references: None
) -> None:
    results = scores(repository, f"{name}_int8", repository.parent / samples if samples else None)
    assert all(score.passed for score in results.values()), results
    assert size(open_model(f"{name}_int8", repository)) < megabytes * 1e6


def test_calibrate_and_verify_a_model_without_batches(tmp_path: Path) -> None:
    samples = save_digits(tmp_path, 20)
    options = {"precision": "int8", "calibration": samples, "max_batch_size": 0}
    build(Request("resnet", name="alone", repository=tmp_path, **options))  # type: ignore[arg-type]
    assert all(score.passed for score in scores(tmp_path, "alone", samples).values())


@pytest.mark.parametrize("name", MODELS)
def test_use_only_operators_of_triton_24_10_s_onnx_runtime(name: str, repository: Path) -> None:
    model = onnx.load(open_model(f"{name}_int8", repository).file)
    assert model.ir_version <= 10
    assert {entry.domain for entry in model.opset_import} <= {"", "com.microsoft"}
    assert max(entry.version for entry in model.opset_import if not entry.domain) <= 21
    onnxruntime.InferenceSession(model.SerializeToString())


@pytest.mark.parametrize("name", MODELS)
def test_overflow_on_no_processor(name: str, repository: Path) -> None:
    """Processors without VNNI add two products of a UINT8 input and a weight in an INT16."""
    model = onnx.load(open_model(f"{name}_int8", repository).file)
    matrices = [
        numpy_helper.to_array(tensor).astype(np.int32)
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) > 1
    ]
    assert matrices
    largest = max(np.abs(matrix).max() for matrix in matrices)
    assert 2 * 255 * largest <= np.iinfo(np.int16).max


def test_build_for_the_cpu_on_every_machine(repository: Path) -> None:
    stored = open_model("resnet_int8", repository, "")
    assert [group.Kind.Name(group.kind) for group in stored.config.instance_group] == ["KIND_CPU"]
    assert not (stored.folder / "configs").exists()
    assert stored.record["precision"] == "int8"
    assert stored.record["engine"] == {"onnxruntime": onnxruntime.__version__}


def test_keep_a_detector_s_last_convolutions_in_fp32(repository: Path) -> None:
    model = onnx.load(open_model("yolov5_int8", repository).file)
    weights = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    heads = [
        n
        for n in model.graph.node
        if n.op_type == "Conv" and weights.get(n.input[1]) == onnx.TensorProto.FLOAT
    ]
    assert len(heads) == 3
    assert sum(node.op_type == "Conv" for node in model.graph.node) == 60


def test_exit_with_1_if_an_engine_no_longer_agrees(
    repository: Path, references: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(repository / "resnet_int8", tmp_path / "resnet_int8")
    file = tmp_path / "resnet_int8/1/model.onnx"
    model = onnx.load(file)
    for tensor in model.graph.initializer:
        if tensor.name.endswith("weight_quantized"):
            tensor.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(tensor)[::-1].copy(), tensor.name)
            )
    onnx.save(model, file)
    assert run(f"verify resnet_int8 --repository {tmp_path}") == 1
    assert "FAILED" in capsys.readouterr().out
    assert run(f"verify resnet_int8 --repository {repository}") == 0
    assert "FAILED" not in capsys.readouterr().out


def test_say_what_to_do_without_the_reference(repository: Path) -> None:
    with pytest.raises(BuildError, match="--reference"):
        verify(open_model("resnet_int8", repository), None, None, 10)


def test_quantize_a_language_model_with_tied_embeddings(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "fill-mask")
    own = {"precision": "int8", "name": "own", "compare": False}
    stored = build_own(tmp_path, checkpoint, **own)
    reference = OnnxFile(reference_folder(stored.record["source_sha256"]) / "model.onnx")
    feed = example_feed(stored.model, 2)
    assert cosine(runner_of(stored)(feed)["logits"], reference(feed)["logits"]) > 0.98
    weights = {tensor.name: tensor.data_type for tensor in onnx.load(stored.file).graph.initializer}
    assert sum(kind == onnx.TensorProto.INT8 for kind in weights.values()) >= 8


def test_calibrate_a_user_s_classifier_on_the_user_s_images(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    shutil.copy(ROOT / "model_repository/resnet/example.png", images / "one.png")
    file = save_classifier(tmp_path / "c.onnx")
    words = f"build own --weights {file} --client resnet --precision int8 --for cpu --no-load"
    words += f" --calibration {images} --out {tmp_path}/models"
    assert run(words) == 2  # one image is not enough for both calibration and comparison
    assert not (tmp_path / "models").exists()
    assert run(f"{words} --no-compare") == 0
    folder = tmp_path / "models/own_int8"
    stored = open_model(folder.name, tmp_path / "models")
    assert stored.model.inputs == (TensorSpec("images", "FP32", (3, 16, 16)),)
    results = verify(stored, None, images, 1)
    assert results[0].value == 1.0


@pytest.mark.parametrize("client", ["resnet", ""], ids=["static", "dynamic"])
def test_quantize_a_file_with_its_weights_beside_it(client: str, tmp_path: Path) -> None:
    own = {"precision": "int8", "name": "own", "load": False, "client": client}
    if client:
        own |= {"calibration": save_images(tmp_path / "images", [Image.new("RGB", (16, 16))] * 8)}
    file = save_classifier(tmp_path / "whole.onnx")
    whole = runner_of(build_own(tmp_path, file, **own))
    location = {"save_as_external_data": True, "location": "beside.data", "size_threshold": 0}
    onnx.save(onnx.load(file), tmp_path / "parted.onnx", **location)
    assert (tmp_path / "beside.data").stat().st_size
    stored = build_own(tmp_path, tmp_path / "parted.onnx", **own)
    assert [path.name for path in stored.version.iterdir()] == ["model.onnx"]
    feed = example_feed(stored.model, 2)
    np.testing.assert_array_equal(runner_of(stored)(feed)["logits"], whole(feed)["logits"])


def test_refuse_int8_that_differs_on_other_samples(tmp_path: Path) -> None:
    """Every fourth image is bright. The others are so dark that bright values are clipped."""
    colors = np.random.default_rng(0).integers(0, 256, (64, 3))
    is_dark = np.arange(64) % 4 != 3
    colors[is_dark] //= 64
    pictures = [Image.new("RGB", (16, 16), tuple(color)) for color in colors.tolist()]
    images, models = save_images(tmp_path / "images", pictures), tmp_path / "models"
    file = save_classifier(tmp_path / "c.onnx", classes=20)
    words = f"build own --weights {file} --client resnet --set mean=0 --set std=1 --no-load"
    words += f" --precision int8 --for cpu --calibration {images} --out {models}"
    assert run(words) == 1
    assert not models.exists()
    assert run(f"{words} --no-compare") == 0  # all images are used for calibration
    for number in np.flatnonzero(is_dark):
        (images / f"{number:03}.png").unlink()
    (score,) = verify(open_model("own_int8", models), None, images, 0)
    assert score.passed


def test_suggest_no_compare_if_a_detector_finds_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = save_images(tmp_path / "images", [Image.new("RGB", (64, 64))] * 8)
    words = f"build yolov5 --precision int8 --for cpu --calibration {images} --no-load"
    assert run(f"{words} --out {tmp_path}/models") == 1
    assert "--no-compare" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["no folder", "missing", "empty"])
def test_refuse_to_calibrate_without_images(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    if kind == "empty":
        folder.mkdir()
    images = None if kind == "no folder" else folder
    own = {"precision": "int8", "client": "resnet", "calibration": images}
    with pytest.raises(UsageError):
        build_own(tmp_path, save_classifier(tmp_path / "c.onnx"), **own)
