"""Folders of image classifiers become models that answer as transformers' own pipeline does."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

from build_engines.build import build
from build_engines.errors import BuildError, UsageError
from build_engines.families.image_network import HEADS
from build_engines.model_folder import open_model
from build_engines.request import Request
from build_engines.runners import example_feed, onnx_runner, openvino_runner
from clients.base import ModelClient
from tests.build_engines.models import session
from tests.clients.vision_models import CLASSIFIERS, LABELS, image_processor_of, images, save_vision

pytestmark = pytest.mark.full


def made(folder: Path, checkpoint: Path, **options: Any) -> tuple[ModelClient, Path]:
    built, _ = build(Request("own", str(checkpoint), repository=folder / "models", **options))
    client = open_model("own", folder / "models").client()
    assert client
    return client, built


def answers(client: ModelClient, folder: Path, pictures: list[Image.Image]) -> list[dict[str, float]]:
    inputs = client.preprocess(pictures)
    (logits,) = session(folder / "1/model.onnx").run(["logits"], inputs)
    found = client.postprocess({"logits": logits}, inputs, pictures, client.read_parameters({}))
    return [{each["label"]: each["score"] for each in one["classes"]} for one in found]


def of_the_pipeline(checkpoint: Path, processor: str, pictures: list[Image.Image]) -> list[dict[str, float]]:
    network = transformers.AutoModelForImageClassification.from_pretrained(checkpoint)
    pipeline: Any = transformers.pipeline(
        "image-classification", model=network, image_processor=image_processor_of(processor).from_pretrained(checkpoint)
    )
    return [{each["label"]: each["score"] for each in pipeline(picture)} for picture in pictures]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_folder_answers_as_transformers_pipeline(name: str, tmp_path: Path) -> None:
    checkpoint = save_vision(tmp_path / "checkpoint", name)
    client, folder = made(tmp_path, checkpoint)
    ours, wanted = answers(client, folder, images()), of_the_pipeline(checkpoint, CLASSIFIERS[name][1], images())
    assert len({round(each["cat"], 4) for each in wanted}) > 1  # the network tells the images apart
    for one, other in zip(ours, wanted, strict=True):
        assert set(one) == set(LABELS.values())
        assert one == pytest.approx(other, abs=1e-4)


def test_classes_that_do_not_exclude_each_other_have_scores_of_their_own(tmp_path: Path) -> None:
    checkpoint = save_vision(tmp_path / "checkpoint", "vit", problem_type="multi_label_classification")
    client, folder = made(tmp_path, checkpoint, client="resnet")
    (ours,), (wanted,) = (answers(client, folder, images()[:1]), of_the_pipeline(checkpoint, "ViT", images()[:1]))
    assert ours == pytest.approx(wanted, abs=1e-4)
    assert sum(ours.values()) != pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("mobilevit", {"size": {"shortest_edge": 20}}, "prepares images"),
        ("vit", {"size": {"shortest_edge": 32}}, "ViTImageProcessor"),
        ("vit", {"do_resize": False}, "ViTImageProcessor"),
        ("vit", None, "preprocessor_config.json"),
        ("vit", {"image_processor_type": "NobodysImageProcessor"}, "image processor"),
    ],
)
def test_a_preparation_that_is_not_served_is_not_built(
    name: str, changes: dict[str, Any] | None, told: str, tmp_path: Path
) -> None:
    checkpoint = save_vision(tmp_path / "checkpoint", name)
    file = checkpoint / "preprocessor_config.json"
    if changes is None:
        file.unlink()
    else:
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(BuildError, match=told):
        made(tmp_path, checkpoint, client="resnet")


@pytest.mark.parametrize(
    ("architectures", "name"),
    [
        (["Mask2FormerForUniversalSegmentation"], "Mask2FormerForUniversalSegmentation"),
        (["ViTForMaskedImageModeling"], "ViTForMaskedImageModeling"),
        ([], '"architectures"'),
    ],
)
def test_other_networks_of_images_are_refused_before_they_are_loaded(
    architectures: list[str], name: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other", "architectures": architectures}))
    (tmp_path / "preprocessor_config.json").write_text("{}")
    with pytest.raises(BuildError, match=name):
        made(tmp_path, tmp_path)


def test_a_folders_own_size_is_not_another(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="--size"):
        made(tmp_path, save_vision(tmp_path / "checkpoint", "vit"), size=64)


def test_boxes_are_compared_as_sets() -> None:
    rng = np.random.default_rng(0)
    scores, boxes = rng.normal(size=(2, 40, 6)).astype(np.float32), rng.random((2, 40, 4)).astype(np.float32)
    same = HEADS["detr"].same
    assert same((scores[:, ::-1], boxes[:, ::-1]), (scores, boxes))
    assert not same((scores, boxes[:, ::-1]), (scores, boxes))
    other = scores.copy()
    other[0, 0] += 1  # one of forty
    assert same((other, boxes), (scores, boxes))


def test_a_folder_of_another_kind_takes_no_other_client_and_no_labels_without_classes(tmp_path: Path) -> None:
    checkpoint, encoder = save_vision(tmp_path / "segformer", "segformer"), save_vision(tmp_path / "vit", "vit-encoder")
    with pytest.raises(BuildError, match="semantic_segmentation"):
        made(tmp_path, checkpoint, client="detr")
    with pytest.raises(UsageError, match="classes"):
        made(tmp_path, encoder, labels=checkpoint / "config.json")


def test_a_network_whose_export_is_right_at_one_size_only_says_how_to_fix_one(tmp_path: Path) -> None:
    checkpoint = save_vision(tmp_path / "checkpoint", "deformable-detr")
    with pytest.raises(BuildError, match="preprocessor_config"):
        made(tmp_path, checkpoint)
    with pytest.raises(UsageError, match="--max-batch-size 4"):
        made(tmp_path, checkpoint, max_batch_size=4)


def test_a_network_of_any_size_is_timed_at_its_shorter_side_and_runs_on_openvino(tmp_path: Path) -> None:
    checkpoint = save_vision(tmp_path / "checkpoint", "detr")
    _, folder = made(tmp_path, checkpoint)
    feed = example_feed(open_model("own", folder.parent).model, 1)
    assert feed["input"].shape == (1, 3, 64, 64)
    onnx, openvino = (
        onnx_runner(folder / "1/model.onnx"),
        openvino_runner(folder / "1/model.onnx", {"INFERENCE_PRECISION_HINT": "f32"}),
    )
    for feeds in (feed, {"input": feed["input"][:, :, :40]}):
        wanted, found = onnx(feeds), openvino(feeds)
        assert all(np.allclose(found[name], wanted[name], atol=1e-4) for name in wanted)


SMALL = {"embedding_size": 8, "hidden_sizes": (16, 24, 32, 40), "depths": (2, 1, 1, 1)}


SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
OTHERS = [
    (transformers.RobertaForMaskedLM, transformers.RobertaConfig(**SHAPE, vocab_size=50), "RobertaForMaskedLM"),
    (transformers.BertModel, transformers.BertConfig(**SHAPE, vocab_size=50), "BertModel"),
    (transformers.ResNetModel, transformers.ResNetConfig(**SMALL), "ResNetModel"),
]


@pytest.mark.parametrize(("network", "config", "told"), OTHERS, ids=["roberta", "bert", "headless"])
def test_the_architecture_in_config_json_decides_and_another_one_is_refused(
    network: Any, config: Any, told: str, tmp_path: Path
) -> None:
    network(config).save_pretrained(tmp_path / "checkpoint")
    with pytest.raises(BuildError, match=told):
        build(Request("own", str(tmp_path / "checkpoint"), client="resnet", repository=tmp_path / "models"))
    with pytest.raises(BuildError):
        build(Request("own", str(tmp_path / "checkpoint"), client="yolov5", repository=tmp_path / "models"))
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda tensors: tensors.pop("classifier.1.bias"), "classifier.1.bias"),
        (lambda tensors: tensors.update(more=torch.zeros(1)), "more"),
    ],
)
def test_a_weight_that_is_missing_or_left_over_ends_the_build(change: Any, told: str, tmp_path: Path) -> None:
    save_vision(tmp_path, "resnet")
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BuildError, match=told):
        build(Request("own", str(tmp_path), repository=tmp_path / "models"))
