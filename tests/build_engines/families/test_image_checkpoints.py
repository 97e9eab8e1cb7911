"""Tests that models built from folders of image classifiers predict the same as transformers' own
pipeline."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from build_engines.build import build
from build_engines.errors import BuildError
from build_engines.families import detr
from build_engines.families.image_network import settings_of
from build_engines.request import Request
from build_engines.runners import OnnxFile, example_feed, openvino_runner
from build_engines.stored_model import open_model
from clients.base import ModelClient
from tests.clients.vision_models import (
    CLASSIFIERS,
    LABELS,
    image_processor_of,
    images,
    pipeline,
    predict,
    save_vision,
    serve,
)

pytestmark = pytest.mark.full


def build_own(folder: Path, checkpoint: Path, **options: Any) -> ModelClient:
    build(Request("own", str(checkpoint), repository=folder / "models", **options))
    client = open_model("own", folder / "models").client()
    assert client
    return client


def scores(classes: list[dict[str, Any]]) -> dict[str, float]:
    return {each["label"]: each["score"] for each in classes}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_answer_as_the_pipeline_of_transformers_does(name: str, tmp_path: Path) -> None:
    checkpoint, client = serve(tmp_path, name)
    ours = [scores(each["classes"]) for each in predict(client, images())]
    wanted = list(map(scores, pipeline("image-classification", checkpoint, name)(images())))
    # the network distinguishes the images
    assert len({round(each["cat"], 4) for each in wanted}) > 1
    for one, other in zip(ours, wanted, strict=True):
        assert set(one) == set(LABELS.values())
        assert one == pytest.approx(other, abs=1e-4)


def test_score_independent_classes_independently(tmp_path: Path) -> None:
    independent = {"problem_type": "multi_label_classification"}
    checkpoint = save_vision(tmp_path / "checkpoint", "vit", **independent)
    client = build_own(tmp_path, checkpoint, client="resnet")
    (prediction,) = predict(client, images()[:1])
    wanted = scores(pipeline("image-classification", checkpoint, "vit")(images()[0]))
    assert scores(prediction["classes"]) == pytest.approx(wanted, abs=1e-4)
    assert sum(wanted.values()) != pytest.approx(1, abs=0.01)


def changed(name: str, **changes: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        file = folder / f"{name}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def other_weights(change: Callable[[Any], Any]) -> Callable[[Path], Any]:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return spoil


nothing = changed("config")
PROCESSOR = "preprocessor_config"
TEXTS = changed("config", architectures=["RobertaForMaskedLM"])
# name of a network, change of its folder, options of the build, a word of the error
REFUSED: list[tuple[str, Callable[[Path], Any], dict[str, Any], str]] = [
    ("mobilevit", changed(PROCESSOR, size={"shortest_edge": 20}), {}, "MobileViT"),
    ("vit", changed(PROCESSOR, size={"shortest_edge": 32}), {}, "ViTImageProcessor"),
    ("vit", changed(PROCESSOR, do_resize=False), {}, "ViTImageProcessor"),
    (
        "vit",
        changed(PROCESSOR, image_processor_type="NobodysImageProcessor"),
        {},
        "image processor",
    ),
    (
        "vit",
        lambda folder: (folder / f"{PROCESSOR}.json").unlink(),
        {"client": "resnet"},
        PROCESSOR,
    ),
    (
        "vit",
        changed("config", architectures=["Mask2FormerForUniversalSegmentation"]),
        {},
        "Mask2FormerForUniversal",
    ),
    (
        "vit",
        changed("config", architectures=["ViTForMaskedImageModeling"]),
        {},
        "ViTForMaskedImageModeling",
    ),
    ("vit", changed("config", architectures=[]), {}, '"architectures"'),
    ("vit", TEXTS, {"client": "resnet"}, "RobertaForMaskedLM"),
    ("vit", nothing, {"client": "yolov5"}, "object_detection is built from an ONNX file"),
    ("vit-encoder", nothing, {"client": "resnet"}, "image_embedding"),
    ("vit", nothing, {"size": 64}, "--size"),
    ("vit-encoder", nothing, {"labels": Path("labels.txt")}, "labels.txt"),
    ("segformer", nothing, {"client": "detr"}, "semantic_segmentation"),
    ("deformable-detr", nothing, {}, PROCESSOR),
    ("deformable-detr", nothing, {"max_batch_size": 4}, "--max-batch-size 4"),
    (
        "resnet",
        other_weights(lambda tensors: tensors.pop("classifier.1.bias")),
        {},
        "classifier.1.bias",
    ),
    ("resnet", other_weights(lambda tensors: tensors.update(more=torch.zeros(1))), {}, "more"),
]


@pytest.mark.parametrize(("name", "change", "options", "named"), REFUSED)
def test_refuse_folders_that_cannot_be_built(
    name: str, change: Callable[[Path], Any], options: Any, named: str, tmp_path: Path
) -> None:
    checkpoint = save_vision(tmp_path / "checkpoint", name)
    change(checkpoint)
    with pytest.raises(BuildError, match=named):
        build_own(tmp_path, checkpoint, **options)
    assert not (tmp_path / "models").exists()


def test_resize_to_the_multiple_to_which_a_processor_rounds() -> None:
    size = {"height": 30, "width": 30}
    processor = image_processor_of("DPT")(size=size, ensure_multiple_of=14, keep_aspect_ratio=False)
    settings = settings_of(processor)
    assert (settings["size"], settings["resize_to"]) == ("28,28", "28,28")


def test_compare_boxes_as_sets() -> None:
    rng = np.random.default_rng(0)
    scores, boxes = (
        rng.normal(size=(2, 40, 6)).astype(np.float32),
        rng.random((2, 40, 4)).astype(np.float32),
    )
    same = detr.HEAD.same
    assert same((scores[:, ::-1], boxes[:, ::-1]), (scores, boxes))
    assert not same((scores, boxes[:, ::-1]), (scores, boxes))
    other = scores.copy()
    other[0, 0] += 1  # one of forty boxes differs
    assert same((other, boxes), (scores, boxes))


def test_run_a_network_of_variable_size_on_openvino(tmp_path: Path) -> None:
    checkpoint = save_vision(tmp_path / "checkpoint", "detr")
    model = build_own(tmp_path, checkpoint).model
    feed = example_feed(model, 1)
    assert feed["input"].shape == (1, 3, 64, 64)
    file = model.path / "1/model.onnx"
    onnx, openvino = OnnxFile(file), openvino_runner(file, {"INFERENCE_PRECISION_HINT": "f32"})
    for feeds in (feed, {"input": feed["input"][:, :, :40]}):
        wanted, served = onnx(feeds), openvino(feeds)
        assert all(np.allclose(served[name], wanted[name], atol=1e-4) for name in wanted)
