"""Tests the heads of detectors: boxes against ONNX's own NonMaxSuppression, and masks against
torch's interpolation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from clients.base import Model, TensorSpec
from clients.object_detection import Client, Pixels
from serving.errors import InferenceFailed, InvalidRequest
from tests.clients.test_boxes import onnx_nms

pytestmark = pytest.mark.full

SIZE, CLASSES, COUNT = (500, 375), 5, 250
# position and scale in a letterbox of 320 pixels: the image has 320×240 of them, with 40 above and
# below
LEFT, TOP, SCALE = 0, 40, 320 / 500
IOU, CONFIDENCE = 0.45, 0.25
Floats = NDArray[np.float32]


def client_of(folder: Path, *outputs: tuple[int, ...], **parameters: str) -> Client:
    inputs = (TensorSpec("images", "UINT8", (3, 320, 320)),)
    specs = tuple(
        TensorSpec(f"output{number}", "FP32", shape) for number, shape in enumerate(outputs)
    )
    return Client(Model("detector", folder, inputs, specs, 8, parameters))


def white(size: tuple[int, int]) -> Pixels:
    """Return a white image of `size` (width, height)."""
    return np.full((*size[::-1], 3), 255, np.uint8)


def detect(
    client: Client, *outputs: Any, size: tuple[int, int] = SIZE, **parameters: Any
) -> list[dict[str, Any]]:
    images = [white(size)]
    arrays = {
        f"output{number}": np.asarray(output, np.float32)[None]
        for number, output in enumerate(outputs)
    }
    (answer,) = client.postprocess(
        arrays, client.prepare(images, {}), images, client.read_parameters(parameters)
    )
    detections: list[dict[str, Any]] = answer["detections"]
    return detections


def scene(seed: int) -> tuple[Floats, Floats]:
    """Return crowded boxes as centres and sizes, and their scores for each class."""
    rng = np.random.default_rng(seed)
    spans = np.concatenate((rng.uniform(60, 260, (COUNT, 2)), rng.uniform(5, 90, (COUNT, 2))), 1)
    return spans.astype(np.float32), (rng.random((COUNT, CLASSES)) ** 3).astype(np.float32)


def corners_of(spans: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    return spans[:, :2] - spans[:, 2:] / 2, spans[:, :2] + spans[:, 2:] / 2


def of_the_operator(spans: Floats, scores: Floats) -> list[tuple[int, float, list[float]]]:
    """Return the boxes that ONNX's NonMaxSuppression keeps if a box counts only for its best class,
    in pixels of the image."""
    best = np.where(scores == scores.max(1, keepdims=True), scores, 0)
    boxes = np.concatenate(corners_of(spans), 1)
    candidates = []
    for _, class_id, index in onnx_nms(boxes, best.T, COUNT, IOU, CONFIDENCE).tolist():
        corners = (boxes[index] - [LEFT, TOP, LEFT, TOP]) / SCALE
        inside = np.clip(corners, 0, [*SIZE, *SIZE]).tolist()
        candidates.append((class_id, float(best[index, class_id]), inside))
    return sorted(candidates, key=lambda candidate: -candidate[1])


def check_equal(
    detections: list[dict[str, Any]], wanted: list[tuple[int, float, list[float]]]
) -> None:
    assert [one["class_id"] for one in detections] == [one[0] for one in wanted]
    np.testing.assert_allclose(
        [one["score"] for one in detections], [one[1] for one in wanted], rtol=1e-5
    )
    corners = [list(one["box"].values()) for one in detections]
    np.testing.assert_allclose(corners, [each[2] for each in wanted], atol=0.02)


@pytest.mark.parametrize("seed", range(2))
def test_get_the_boxes_of_the_onnx_operator_from_each_head(seed: int, tmp_path: Path) -> None:
    spans, scores = scene(seed)
    wanted = of_the_operator(spans, scores)
    assert len(wanted) > 50
    objectness = scores.max(1, keepdims=True)
    columns = np.concatenate((spans, scores), 1).T
    rows = np.concatenate((spans, objectness, scores / objectness), 1)
    points, extras = np.zeros((6, COUNT), np.float32), np.ones((COUNT, 32), np.float32)
    heads: list[tuple[Floats, dict[str, str]]] = [
        (columns, {}),
        (rows, {}),
        (np.concatenate((columns, points)), {"keypoints": "2,3"}),
    ]
    for table, settings in heads:
        check_equal(detect(client_of(tmp_path, table.shape, **settings), table), wanted)
    masked = {
        "yolov5u": np.concatenate((columns, extras.T)),
        "yolov5": np.concatenate((rows, extras), 1),
    }
    for layout, table in masked.items():
        client = client_of(tmp_path, table.shape, (32, 80, 80), layout=layout)
        check_equal(detect(client, table, np.zeros((32, 80, 80)), masks="none"), wanted)


@pytest.mark.parametrize("shape", [(300, 6), (-1, 6)])
def test_return_the_rows_of_an_end_to_end_head_unchanged(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    table = np.zeros((300, 6))
    table[:3] = [[10, 50, 74, 114, 0.5, 1], [32, 40, 96, 72, 0.9, 0], [12, 50, 74, 114, 0.4, 1]]
    detections = detect(client_of(tmp_path, shape), table)
    small = [15.625, 115.625, 115.625]
    check_equal(
        detections,
        [(0, 0.9, [50, 0, 150, 50]), (1, 0.5, [15.625, *small]), (1, 0.4, [18.75, *small])],
    )
    assert [detection["label"] for detection in detections] == ["cat", "dog", "dog"]
    assert len(detect(client_of(tmp_path, shape), table, max_detections=1, confidence=0.45)) == 1


@pytest.mark.parametrize("last", [0.5, -1, 2])
def test_refuse_six_columns_that_are_not_an_end_to_end_head(last: float, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    with pytest.raises(InferenceFailed, match="labels"):
        detect(client_of(tmp_path, (300, 6)), np.full((300, 6), last))


@pytest.mark.parametrize("layout", ["yolov5u", "yolov5", "end2end"])
def test_enlarge_masks_as_torch_does(layout: str, tmp_path: Path) -> None:
    """Ultralytics' process_mask enlarges masks bilinearly, keeps the pixels above 0 and crops them
    to the box."""
    ys, xs = np.mgrid[:80, :80].astype(np.float32)
    prototypes = np.zeros((32, 80, 80), np.float32)
    prototypes[0] = 12 - np.hypot(xs - 30, ys - 40)  # a disc
    prototypes[1] = np.sin(xs / 3) * np.cos(ys / 4) - 0.2  # islands
    coefficients = np.zeros((2, 32), np.float32)
    coefficients[0, 0] = coefficients[1, 1] = 1
    spans, scores = (
        np.array([[120, 160, 80, 110], [230, 150, 100, 90]]),
        np.array([[0.9, 0.1], [0.2, 0.8]]),
    )
    low, high = corners_of(spans)
    table = {
        "yolov5u": np.concatenate((spans, scores, coefficients), 1).T,
        "yolov5": np.concatenate((spans, np.ones((2, 1)), scores, coefficients), 1),
        "end2end": np.concatenate((low, high, scores.max(1)[:, None], [[0], [1]], coefficients), 1),
    }[layout]
    client = client_of(tmp_path, table.shape, (32, 80, 80), layout=layout)
    detections = detect(client, table, prototypes, size=(320, 320))
    maps = (
        torch.nn.functional.interpolate(
            torch.from_numpy(prototypes[None, :2]), (320, 320), mode="bilinear"
        )[0]
        > 0
    )
    for detection, expected, (x, y), (right, bottom) in zip(
        detections, maps.numpy(), low, high, strict=True
    ):
        wanted = np.zeros((320, 320), bool)
        inside = np.s_[int(y) : int(bottom), int(x) : int(right)]
        wanted[inside] = expected[inside]
        ours = Image.new("1", (320, 320))
        for polygon in detection["polygons"]:
            ImageDraw.Draw(ours).polygon(np.floor(polygon).tolist(), fill=1, outline=1)
        drawn = np.asarray(ours)
        assert wanted.sum() > 1500
        assert (drawn & wanted).sum() / (drawn | wanted).sum() > 0.99
    assert len(detections[0]["polygons"]) == 1 < len(detections[1]["polygons"])
    (alone, *_) = detect(client, table, prototypes, size=(320, 320), masks="none")
    assert "polygons" not in alone
    veiled = client.draw(white((320, 320)), {"detections": detections[:1]})
    assert veiled.getpixel((120, 160)) != (255, 255, 255)
    with pytest.raises(InvalidRequest, match="max_detections"):
        client.read_parameters({"max_detections": 301})


@pytest.mark.parametrize("values", [2, 3])
@pytest.mark.parametrize("final", [False, True])
def test_return_keypoints_in_pixels_of_the_image(values: int, final: bool, tmp_path: Path) -> None:
    points = np.array([[[32, 40, 0.9], [160, 160, 0.2]]])[..., :values]
    box = [0, 40, 320, 280, 0.8, 0] if final else [160, 160, 320, 240, 0.8]
    row = np.concatenate((box, points.reshape(-1)))
    table = np.tile(row, (3, 1)) if final else np.tile(row[:, None], (1, 100))
    (detection, *_) = detect(client_of(tmp_path, table.shape, keypoints=f"2,{values}"), table)
    pixels = [(point["x"], point["y"]) for point in detection["keypoints"]]
    np.testing.assert_allclose(pixels, [(50, 0), (250, 187.5)], atol=0.01)
    scores = [round(point["score"], 3) for point in detection["keypoints"] if "score" in point]
    assert scores == ([0.9, 0.2] if values == 3 else [])
    drawn = client_of(tmp_path, (9, 100)).draw(white(SIZE), {"detections": [detection]})
    # a keypoint with a score below 0.5 is not drawn
    assert (drawn.getpixel((250, 187)) != (255, 255, 255)) == (values == 2)


@pytest.mark.parametrize("keypoints", ["17", "17,4", "0,3", "1.5,3"])
def test_refuse_a_wrong_keypoints_setting(keypoints: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="'keypoints'"):
        client_of(tmp_path, (56, 8400), keypoints=keypoints)
