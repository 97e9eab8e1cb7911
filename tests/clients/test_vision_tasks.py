"""Tests boxes, vectors and maps of classes for images against transformers' own pipelines and
encoders."""

import io
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image, ImageChops

from build_engines.comparison import compare
from build_engines.errors import BuildError
from build_engines.request import Request
from clients import detr, image_embedding, semantic_segmentation
from clients._masks import MOST_PIXELS
from clients.base import Model, ModelClient, TensorSpec
from clients.semantic_segmentation import best_classes
from serving.codecs import Limits, encode_image
from serving.errors import InferenceFailed, InvalidRequest
from tests.build_engines.models import exported
from tests.clients.text_models import Served, save_tokenizer
from tests.clients.vision_models import (
    DETECTORS,
    ENCODERS,
    assert_detections,
    images,
    pipeline,
    predict,
    processor_of,
    runner,
    save_vision,
    serve,
)

pytestmark = pytest.mark.full


NOWHERE = Path("/nonexistent")


def model_of(folder: Path, *lead: int, batch: int = 8, **outputs: tuple[int, ...]) -> Model:
    """Return a model for images with these outputs. All shapes begin with the dimensions `lead`."""
    inputs = (TensorSpec("input", "UINT8", (*lead, 3, 8, 8)),)
    specs = (TensorSpec(name, "FP32", (*lead, *shape)) for name, shape in outputs.items())
    return Model("own", folder, inputs, tuple(specs), batch)


def detector_of(folder: Path, classes: int = 3, boxes: int = 4, **settings: str) -> detr.Client:
    model = model_of(folder, logits=(2, classes), pred_boxes=(2, boxes))
    return detr.Client(replace(model, parameters=settings))


def detections_of(
    client: detr.Client, logits: Any, boxes: Any, **parameters: Any
) -> list[dict[str, Any]]:
    outputs = {
        "logits": np.array([logits], np.float32),
        "pred_boxes": np.array([boxes], np.float32),
    }
    (prediction,) = client.postprocess(
        outputs, {}, [Image.new("RGB", (200, 100))], client.read_parameters(parameters)
    )
    detections: list[dict[str, Any]] = prediction["detections"]
    return detections


@pytest.mark.parametrize("name", DETECTORS)
def test_get_the_boxes_of_transformers_from_a_detector(name: str, tmp_path: Path) -> None:
    checkpoint, client = serve(tmp_path, name)
    whole = pipeline("object-detection", checkpoint, name)
    for picture, prediction in zip(
        images(), predict(client, images(), confidence=0.1), strict=True
    ):
        assert_detections(prediction, picture, whole(picture, threshold=0.1))


BOXES = [[0.5, 0.5, 0.2, 0.4], [0.1, 0.9, 0.4, 0.4]]
INSIDE = {"xmin": 80.0, "ymin": 30.0, "xmax": 120.0, "ymax": 70.0}


def test_return_the_best_class_of_a_box_or_several(tmp_path: Path) -> None:
    logits = [[9, 8.5, 0], [0, 1, 9]]
    (best,) = detections_of(detector_of(tmp_path), logits, BOXES)
    assert (best["class_id"], best["box"]) == (0, INSIDE)
    several = detector_of(tmp_path, scores="sigmoid")
    # as many scores as there are boxes
    assert [each["class_id"] for each in detections_of(several, logits, BOXES)] == [0, 2]
    more = detector_of(tmp_path, scores="sigmoid", queries="4")
    assert [each["class_id"] for each in detections_of(more, logits, BOXES)] == [0, 2, 1, 1]
    assert len(detections_of(more, logits, BOXES, max_detections=3)) == 3
    assert len(detections_of(more, logits, BOXES, confidence=0.9)) == 3


OUTPUTS: dict[type[ModelClient], dict[str, Any]] = {
    detr.Client: {"logits": [[9, 8.5, 0], [0, 1, 9]], "pred_boxes": BOXES},
    image_embedding.Client: {"vector": [3, 4]},
    semantic_segmentation.Client: {"scores": np.arange(24).reshape(3, 2, 4) % 7},
}


def answer_of(kind: type[ModelClient], *lead: int, batch: int) -> list[Any]:
    arrays = {name: np.array(values, np.float32) for name, values in OUTPUTS[kind].items()}
    shapes = {name: array.shape for name, array in arrays.items()}
    client = kind(model_of(NOWHERE, *lead, batch=batch, **shapes))
    # the caller adds a dimension for the batch of images
    outputs = {name: array.reshape(1, *lead, *array.shape) for name, array in arrays.items()}
    return client.postprocess(outputs, {}, images()[:1], client.read_parameters({}))


@pytest.mark.parametrize("lead", [(), (1,)], ids=["none", "one"])
@pytest.mark.parametrize("kind", OUTPUTS)
def test_answer_alike_with_a_fixed_batch_of_one_or_no_batch(
    kind: type[ModelClient], lead: tuple[int, ...]
) -> None:
    np.testing.assert_equal(answer_of(kind, *lead, batch=0), answer_of(kind, batch=8))


def read(client: ModelClient, jpeg: bytes) -> Image.Image:
    """Decode a JPEG as the server does for this client."""
    image: Image.Image = client.codec.from_bytes(jpeg, Limits(side=client.side))
    return image


@pytest.mark.parametrize("kind", [detr.Client, semantic_segmentation.Client])
def test_answer_for_a_reduced_jpeg_in_pixels_of_the_jpeg(kind: type[ModelClient]) -> None:
    arrays = {name: np.array([rows], np.float32) for name, rows in OUTPUTS[kind].items()}
    shapes: dict[str, Any] = {name: array.shape[1:] for name, array in arrays.items()}
    model = model_of(NOWHERE, **shapes)
    jpeg = encode_image(Image.new("RGB", (1200, 801)), "image/jpeg")
    answers = []
    for exact, size in (("false", (150, 101)), ("true", (1200, 801))):
        client = kind(replace(model, parameters={"exact": exact}))
        image = read(client, jpeg)
        assert image.size == size
        answers += client.postprocess(arrays, {}, [image], client.read_parameters({}))
    assert answers[0] == answers[1]
    assert answers[0]["image"] == {"width": 1200, "height": 801}


@pytest.mark.parametrize("divisor", ["1", "16"])
def test_resize_a_reduced_jpeg_to_the_same_size(divisor: str) -> None:
    """At 1/8 the image has 101×201 pixels, which alone would become 40×79 or 32×64."""
    model = model_of(NOWHERE, batch=1, logits=(2, 3), pred_boxes=(2, 4))
    model = replace(model, inputs=(TensorSpec("input", "UINT8", (3, -1, -1)),))
    settings = {"resize": "keep_ratio", "resize_to": "40,120", "size_divisor": divisor}
    jpeg = encode_image(Image.radial_gradient("L").resize((801, 1604)), "image/jpeg")
    inputs = []
    for exact, size in (("false", (101, 201)), ("true", (801, 1604))):
        client = detr.Client(replace(model, parameters=settings | {"exact": exact}))
        image = read(client, jpeg)
        assert image.size == size
        inputs.append(client.prepare([image], {})["input"].astype(float))
    np.testing.assert_allclose(inputs[0], inputs[1], atol=8)


def test_clip_boxes_at_the_image_and_draw_them(tmp_path: Path) -> None:
    client, sheet = detector_of(tmp_path), Image.new("RGB", (200, 100))
    (detection,) = detections_of(client, [[0, 0, 9], [9, 0, 0]], BOXES)
    assert detection["box"] == {"xmin": 0.0, "ymin": 70.0, "xmax": 60.0, "ymax": 100.0}
    assert ImageChops.difference(client.draw(sheet, {"detections": [detection]}), sheet).getbbox()


def test_refuse_outputs_that_are_not_boxes_with_these_labels(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="pred_boxes"):
        detector_of(tmp_path, boxes=5)
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    assert detector_of(tmp_path, classes=3)
    assert detector_of(tmp_path, classes=2, scores="sigmoid")
    with pytest.raises(InvalidRequest, match="'logits'"):
        detector_of(tmp_path, classes=3, scores="sigmoid")
    cuts: list[Any] = [
        {"resize": "pad", "exact": "true"},
        {"resize": "shortest"},
        {"resize_to": "9"},
    ]
    for settings in cuts:
        with pytest.raises(InvalidRequest, match="stretch"):
            detector_of(tmp_path, **settings)
    for logits in ([[0, 0], [0, 0]], [[np.nan, 0, 0]] * 2):
        with pytest.raises(InferenceFailed, match="'logits'"):
            detections_of(detector_of(tmp_path, classes=-1), logits, BOXES)


def encoder_of(*shape: int, batch: int = 8) -> image_embedding.Client:
    return image_embedding.Client(model_of(NOWHERE, batch=batch, vector=shape))


def of_the_network(checkpoint: Path, name: str, picture: Image.Image) -> Any:
    """Return the vector that transformers compares with texts, which is not the pooled output."""
    pixels = processor_of(checkpoint, name)(images=picture, return_tensors="pt")
    with torch.inference_mode():
        if name == "clip-projected":
            return transformers.CLIPVisionModelWithProjection.from_pretrained(checkpoint)(
                **pixels
            ).image_embeds[0]
        return (
            transformers.AutoModel.from_pretrained(checkpoint)
            .get_image_features(**pixels)
            .pooler_output[0]
        )


@pytest.mark.parametrize("name", ENCODERS)
def test_get_the_vectors_of_transformers_from_an_encoder(name: str, tmp_path: Path) -> None:
    checkpoint, client = serve(tmp_path, name)
    ours = [each["embedding"] for each in predict(client, images(), normalize=False)]
    if name in ("clip", "siglip", "clip-projected"):
        wanted = [of_the_network(checkpoint, name, picture).numpy() for picture in images()]
    else:
        whole = pipeline("image-feature-extraction", checkpoint, name)
        wanted = [np.ravel(whole(picture, pool=True)) for picture in images()]
    np.testing.assert_allclose(ours, wanted, atol=1e-4)
    assert np.ptp(ours, axis=0).max() > 0.01  # the network distinguishes the images
    scaled = [each["embedding"] for each in predict(client, images())]
    np.testing.assert_allclose(
        scaled, np.array(ours) / np.linalg.norm(ours, axis=1, keepdims=True), atol=1e-6
    )
    (score,) = compare(client.model, client, runner(client), runner(client), count=2)
    assert score.value == pytest.approx(1)


@pytest.mark.parametrize("alone", [False, True])
def test_compare_texts_with_images_by_clip_s_two_towers(alone: bool, tmp_path: Path) -> None:
    """The text tower may be in a separate folder."""
    checkpoint, client = serve(tmp_path, "clip")
    network = transformers.CLIPModel.from_pretrained(checkpoint)
    folder = checkpoint
    if alone:
        folder = tmp_path / "texts"
        tower = transformers.CLIPTextModelWithProjection.from_pretrained(
            checkpoint, projection_dim=24
        )
        tower.save_pretrained(folder)
    save_tokenizer(folder, "bytes")
    texts = ["the cat sat", "a dog", "quickly the fox ran under the moon"]
    written = exported(Request("words", client="bert"), folder, tmp_path / "made")
    vectors = np.array(
        [each["embedding"] for each in Served(tmp_path / "made", **written.settings).predict(texts)]
    )
    images_ = np.array([each["embedding"] for each in predict(client, images(), normalize=True)])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(texts, return_tensors="pt", padding=True)
    pixels = processor_of(checkpoint, "clip")(images=images(), return_tensors="pt")
    with torch.inference_mode():
        wanted = network(
            input_ids=tokens.input_ids, attention_mask=tokens.attention_mask, **pixels
        ).logits_per_image
    scale = network.logit_scale.exp().item()
    np.testing.assert_allclose(scale * images_ @ vectors.T, wanted.numpy(), atol=1e-3)


def test_refuse_the_text_tower_of_another_network(tmp_path: Path) -> None:
    """SigLIP's text tower reads texts that are padded to its full length."""
    folder = save_vision(tmp_path, "siglip")
    save_tokenizer(folder, "bytes")
    with pytest.raises(BuildError, match="SiglipModel"):
        exported(Request("words", client="bert"), folder, tmp_path / "made")


def test_refuse_an_output_that_is_not_a_vector() -> None:
    for shape, batch in (((7, 7, 32), 8), ((1, 2), 0)):
        with pytest.raises(InvalidRequest, match="'vector'"):
            encoder_of(*shape, batch=batch)
    for wrong in (np.full((1, 4), np.nan), np.zeros((1, 2, 4))):
        with pytest.raises(InferenceFailed, match="'vector'"):
            encoder_of(4).postprocess({"vector": wrong}, {}, images()[:1], {"normalize": True})
    (zeros,) = encoder_of(4).postprocess(
        {"vector": np.zeros((1, 4))}, {}, [None], {"normalize": True}
    )
    assert zeros["embedding"].tolist() == [0, 0, 0, 0]


def segmenter_of(folder: Path, *shape: int) -> semantic_segmentation.Client:
    return semantic_segmentation.Client(model_of(folder, scores=shape))


def map_answer(
    client: semantic_segmentation.Client, scores: Any, picture: Image.Image, **parameters: Any
) -> Any:
    outputs = {"scores": scores[None].astype(np.float32)}
    return client.postprocess(outputs, {}, [picture], client.read_parameters(parameters))[0]


def map_of(prediction: Any) -> NDArray[np.uint8]:
    return np.array(Image.open(io.BytesIO(b64decode(prediction["map"]["b64"]))))


def test_get_the_maps_of_transformers_from_a_segmenter(tmp_path: Path) -> None:
    checkpoint, client = serve(tmp_path, "segformer")
    whole = pipeline("image-segmentation", checkpoint, "segformer")
    for picture, prediction in zip(images(), predict(client, images()), strict=True):
        classes = map_of(prediction)
        assert (
            classes.shape
            == picture.size[::-1]
            == (prediction["map"]["height"], prediction["map"]["width"])
        )
        wanted = {each["label"]: np.array(each["mask"]) > 0 for each in whole(picture)}
        assert len(wanted) > 1
        assert {each["label"] for each in prediction["segments"]} == set(wanted)
        for segment in prediction["segments"]:
            assert ((classes == segment["class_id"]) != wanted[segment["label"]]).mean() < 1e-3
            assert segment["share"] == pytest.approx(wanted[segment["label"]].mean(), abs=1e-3)
    (score,) = compare(client.model, client, runner(client), runner(client), count=2)
    assert score.value == pytest.approx(1)


@pytest.mark.parametrize("size", [(64, 48), (7, 5), (1, 1), (100, 13)])
def test_enlarge_scores_as_torch_does(size: tuple[int, int]) -> None:
    scores = np.random.default_rng(0).normal(size=(9, 12, 16)).astype(np.float32)
    larger = torch.nn.functional.interpolate(
        torch.from_numpy(scores[None]), size[::-1], mode="bilinear"
    )
    assert (best_classes(scores, size) != larger[0].argmax(0).numpy()).mean() < 1e-3


def test_sort_shares_and_let_the_first_class_win_equal_scores(tmp_path: Path) -> None:
    scores = np.zeros((3, 2, 4))
    scores[2, :, 1:] = 1
    client = segmenter_of(tmp_path, 3, 2, 4)
    assert client.frame.resized == client.frame.size  # the map covers the whole image
    prediction = map_answer(client, scores, Image.new("RGB", (4, 2)))
    shares = [(each["label"], each["class_id"], each["share"]) for each in prediction["segments"]]
    assert shares == [("2", 2, 0.75), ("0", 0, 0.25)]
    assert map_of(prediction).tolist() == [[0, 2, 2, 2]] * 2


def test_bound_draw_and_omit_a_map(tmp_path: Path) -> None:
    client, scores = segmenter_of(tmp_path, 3, 2, 4), np.random.default_rng(0).random((3, 2, 4))
    large = Image.new("RGB", (3000, 1500), "white")
    prediction = map_answer(client, scores, large)
    assert (
        0.99 * MOST_PIXELS < prediction["map"]["width"] * prediction["map"]["height"] <= MOST_PIXELS
    )
    assert prediction["image"] == {"width": 3000, "height": 1500}
    assert ImageChops.difference(client.draw(large, prediction), large).getbbox() == (
        0,
        0,
        3000,
        1500,
    )
    without = map_answer(client, scores, large, map="none")
    assert without == {key: value for key, value in prediction.items() if key != "map"}
    with pytest.raises(InvalidRequest, match="'map'"):
        client.draw(large, without)


def test_refuse_an_output_that_is_not_a_map_of_these_labels(tmp_path: Path) -> None:
    for shape in ((32,), (257, 4, 4), (1, 4, 4)):
        with pytest.raises(InvalidRequest):
            segmenter_of(tmp_path, *shape)
    with pytest.raises(InferenceFailed):
        map_answer(segmenter_of(tmp_path, -1, 4, 4), np.ones((1, 4, 4)), Image.new("RGB", (4, 4)))
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    with pytest.raises(InvalidRequest, match="labels"):
        segmenter_of(tmp_path, 5, 4, 4)
    for wrong in (np.zeros((5, 4, 4)), np.full((2, 4, 4), np.inf)):
        with pytest.raises(InferenceFailed):
            map_answer(segmenter_of(tmp_path, -1, 4, 4), wrong, Image.new("RGB", (4, 4)))
