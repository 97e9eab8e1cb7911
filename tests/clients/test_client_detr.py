"""Detectors that answer with a set of boxes: the detections of transformers' own pipeline."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageChops

from clients.base import Model, TensorSpec
from clients.detr import Client
from serving.codecs import Limits, encode_image
from serving.errors import InferenceFailed, InvalidRequest
from tests.clients.vision_models import DETECTORS, assert_detections, images, pipeline, predict, serve

pytestmark = pytest.mark.full


def client_of(folder: Path, classes: int = 3, boxes: int = 4, **settings: str) -> Client:
    outputs = (TensorSpec("logits", "FP32", (2, classes)), TensorSpec("pred_boxes", "FP32", (2, boxes)))
    return Client(Model("own", folder, (TensorSpec("input", "UINT8", (3, 8, 8)),), outputs, 8, settings))


def answer(client: Client, logits: Any, boxes: Any, **given: Any) -> list[dict[str, Any]]:
    outputs = {"logits": np.array([logits], np.float32), "pred_boxes": np.array([boxes], np.float32)}
    (found,) = client.postprocess(outputs, {}, [Image.new("RGB", (200, 100))], client.read_parameters(given))
    detections: list[dict[str, Any]] = found["detections"]
    return detections


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_gives_the_boxes_of_transformers(name: str, tmp_path: Path) -> None:
    checkpoint, client = serve(tmp_path, name)
    whole = pipeline("object-detection", checkpoint, name)
    for picture, found in zip(images(), predict(client, images(), confidence=0.1), strict=True):
        assert_detections(found, picture, whole(picture, threshold=0.1))


BOXES = [[0.5, 0.5, 0.2, 0.4], [0.1, 0.9, 0.4, 0.4]]
INSIDE = {"xmin": 80.0, "ymin": 30.0, "xmax": 120.0, "ymax": 70.0}


def test_a_box_has_its_best_class_or_several(tmp_path: Path) -> None:
    logits = [[9, 8.5, 0], [0, 1, 9]]
    assert [(each["class_id"], each["box"]) for each in answer(client_of(tmp_path), logits, BOXES)] == [(0, INSIDE)]
    several = client_of(tmp_path, scores="sigmoid")
    assert [each["class_id"] for each in answer(several, logits, BOXES)] == [0, 2]  # as many as there are boxes
    more = client_of(tmp_path, scores="sigmoid", queries="4")
    assert [each["class_id"] for each in answer(more, logits, BOXES)] == [0, 2, 1, 1]
    assert len(answer(more, logits, BOXES, max_detections=3)) == 3
    assert len(answer(more, logits, BOXES, confidence=0.9)) == 3


def test_a_network_with_a_batch_of_one_of_its_own_gives_boxes(tmp_path: Path) -> None:
    outputs = (TensorSpec("logits", "FP32", (1, 2, 3)), TensorSpec("pred_boxes", "FP32", (1, 2, 4)))
    client = Client(Model("own", tmp_path, (TensorSpec("input", "UINT8", (1, 3, 8, 8)),), outputs, 0))
    logits = [[9, 8.5, 0], [0, 1, 9]]
    assert answer(client, [logits], [BOXES]) == answer(client_of(tmp_path), logits, BOXES)


def test_a_large_jpeg_is_not_decoded_smaller_since_boxes_are_in_its_own_pixels(tmp_path: Path) -> None:
    client, large = client_of(tmp_path, exact="false"), encode_image(Image.new("RGB", (1200, 800)), "image/jpeg")
    assert client.codec.from_bytes(large, Limits(10**7, side=client.side)).size == (1200, 800)


def test_boxes_are_cut_at_the_image_and_drawn(tmp_path: Path) -> None:
    client, sheet = client_of(tmp_path), Image.new("RGB", (200, 100))
    (found,) = answer(client, [[0, 0, 9], [9, 0, 0]], BOXES)
    assert found["box"] == {"xmin": 0.0, "ymin": 70.0, "xmax": 60.0, "ymax": 100.0}
    assert ImageChops.difference(client.draw(sheet, {"detections": [found]}), sheet).getbbox()


def test_what_is_no_set_of_boxes_with_these_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="pred_boxes"):
        client_of(tmp_path, boxes=5)
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    assert client_of(tmp_path, classes=3)
    assert client_of(tmp_path, classes=2, scores="sigmoid")
    with pytest.raises(InvalidRequest, match="'logits'"):
        client_of(tmp_path, classes=3, scores="sigmoid")
    for logits in ([[0, 0], [0, 0]], [[np.nan, 0, 0]] * 2):
        with pytest.raises(InferenceFailed, match="'logits'"):
            answer(client_of(tmp_path, classes=-1), logits, BOXES)
