"""Maps of classes against those of transformers' own pipeline; their bounds, and how they are drawn."""

import io
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageChops

from build_engines.comparison import compare
from clients._masks import MOST_PIXELS
from clients.base import Model, TensorSpec
from clients.semantic_segmentation import Client, best_classes
from serving.errors import InferenceFailed, InvalidRequest
from tests.clients.vision_models import images, pipeline, predict, runner, serve

pytestmark = pytest.mark.full


def client_of(folder: Path, *shape: int) -> Client:
    inputs, outputs = (TensorSpec("input", "UINT8", (3, 8, 8)),), (TensorSpec("scores", "FP32", shape),)
    return Client(Model("own", folder, inputs, outputs, 8))


def answer(client: Client, scores: NDArray[Any], picture: Image.Image, **given: Any) -> Any:
    outputs = {"scores": scores[None].astype(np.float32)}
    return client.postprocess(outputs, {}, [picture], client.read_parameters(given))[0]


def map_of(found: Any) -> NDArray[np.uint8]:
    return np.array(Image.open(io.BytesIO(b64decode(found["map"]["b64"]))))


def test_a_segmenter_gives_the_maps_of_transformers(tmp_path: Path) -> None:
    checkpoint, client = serve(tmp_path, "segformer")
    whole = pipeline("image-segmentation", checkpoint, "segformer")
    for picture, found in zip(images(), predict(client, images()), strict=True):
        classes = map_of(found)
        assert classes.shape == (picture.height, picture.width) == (found["map"]["height"], found["map"]["width"])
        wanted = {each["label"]: np.array(each["mask"]) > 0 for each in whole(picture)}
        assert len(wanted) > 1
        assert {each["label"] for each in found["segments"]} == set(wanted)
        for segment in found["segments"]:
            assert ((classes == segment["class_id"]) != wanted[segment["label"]]).mean() < 1e-3
            assert segment["share"] == pytest.approx(wanted[segment["label"]].mean(), abs=1e-3)
    (score,) = compare(client.model, client, runner(client), runner(client), count=2)
    assert score.value == pytest.approx(1)


@pytest.mark.parametrize("size", [(64, 48), (7, 5), (1, 1), (100, 13)])
def test_scores_are_enlarged_as_torch_does(size: tuple[int, int]) -> None:
    scores = np.random.default_rng(0).normal(size=(9, 12, 16)).astype(np.float32)
    larger = torch.nn.functional.interpolate(torch.from_numpy(scores[None]), size[::-1], mode="bilinear")
    assert (best_classes(scores, size) != larger[0].argmax(0).numpy()).mean() < 1e-3


def test_shares_are_the_largest_first_and_of_equal_scores_the_first_class_counts(tmp_path: Path) -> None:
    scores = np.zeros((3, 2, 4))
    scores[2, :, 1:] = 1
    found = answer(client_of(tmp_path, 3, 2, 4), scores, Image.new("RGB", (4, 2)))
    assert found["segments"] == [
        {"label": "2", "class_id": 2, "share": 0.75},
        {"label": "0", "class_id": 0, "share": 0.25},
    ]
    assert map_of(found).tolist() == [[0, 2, 2, 2]] * 2


def test_a_network_with_a_batch_of_one_of_its_own_gives_a_map(tmp_path: Path) -> None:
    inputs, outputs = (TensorSpec("input", "UINT8", (1, 3, 8, 8)),), (TensorSpec("scores", "FP32", (1, 3, 2, 4)),)
    scores = np.zeros((1, 3, 2, 4))
    scores[:, 1] = 1
    found = answer(Client(Model("own", tmp_path, inputs, outputs, 0)), scores, Image.new("RGB", (4, 2)))
    assert map_of(found).tolist() == [[1] * 4] * 2


def test_a_map_is_bounded_drawn_and_left_out_where_it_is_not_wanted(tmp_path: Path) -> None:
    client, scores = client_of(tmp_path, 3, 2, 4), np.random.default_rng(0).random((3, 2, 4))
    large = Image.new("RGB", (3000, 1500), "white")
    found = answer(client, scores, large)
    assert 0.99 * MOST_PIXELS < found["map"]["width"] * found["map"]["height"] <= MOST_PIXELS
    assert found["image"] == {"width": 3000, "height": 1500}
    assert ImageChops.difference(client.draw(large, found), large).getbbox() == (0, 0, 3000, 1500)
    without = answer(client, scores, large, map="none")
    assert without == {key: value for key, value in found.items() if key != "map"}
    with pytest.raises(InvalidRequest, match="'map'"):
        client.draw(large, without)


def test_what_is_no_map_of_these_labels_is_refused(tmp_path: Path) -> None:
    for shape in ((32,), (257, 4, 4), (1, 4, 4)):
        with pytest.raises(InvalidRequest):
            client_of(tmp_path, *shape)
    with pytest.raises(InferenceFailed):
        answer(client_of(tmp_path, -1, 4, 4), np.ones((1, 4, 4)), Image.new("RGB", (4, 4)))
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    with pytest.raises(InvalidRequest, match="labels"):
        client_of(tmp_path, 5, 4, 4)
    for wrong in (np.zeros((5, 4, 4)), np.full((2, 4, 4), np.inf)):
        with pytest.raises(InferenceFailed):
            answer(client_of(tmp_path, -1, 4, 4), wrong, Image.new("RGB", (4, 4)))
