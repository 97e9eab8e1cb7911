"""The detector's client: both output layouts, its parameters, and the truth of its answers on held-out pages."""

import re
from collections.abc import Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageChops

from clients._drawing import class_colour
from clients.base import Model, TensorSpec
from clients.yolov5 import Client
from serving.errors import InferenceFailed, InvalidRequest
from tests.support.digits import held_out_pages
from tests.support.harness import PATIENCE

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).resolve().parents[2] / "model_repository" / "yolov5"
LABELS = ["cat", "dog", "7"]
Detections = list[dict[str, Any]]


def client_of(
    folder: Path,
    input_shape: tuple[int, ...] = (3, 640, 640),
    output_shape: tuple[int, ...] = (-1, 8),
    datatype: str = "FP32",
    **parameters: str,
) -> Client:
    inputs, outputs = (TensorSpec("in", datatype, input_shape),), (TensorSpec("out", "FP32", output_shape),)
    return Client(Model("detector", folder, inputs, outputs, 8, parameters))


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    (tmp_path / "labels.txt").write_text("\n".join(LABELS) + "\n")
    return tmp_path


@pytest.fixture
def client(labelled: Path) -> Client:
    return client_of(labelled)


def rows_of(*rows: tuple[float, ...]) -> NDArray[np.float32]:
    """A YOLOv5 output of three classes [100,8]: the rows given, the rest without objects."""
    table = np.zeros((100, 8), np.float32)
    table[10 : 10 + len(rows)] = rows
    return table


def detect(client: Client, tables: Any, images: list[Image.Image], **given: Any) -> list[Any]:
    inputs = client.preprocess(images)
    return client.postprocess({"out": np.asarray(tables)}, inputs, images, client.read_parameters(given))


CAT = (100, 200, 40, 20, 0.9, 0.9, 0.1, 0.0)
DOG = (100, 200, 40, 20, 0.8, 0.1, 0.9, 0.0)
SEVEN = (500, 320, 100, 100, 0.5, 0.2, 0.1, 0.8)
WIDE = Image.new("RGB", (1280, 720), "white")  # lies at half its size, 140 pixels below the target's top


def test_a_row_becomes_a_detection_in_pixels_of_the_image_as_sent(client: Client) -> None:
    (prediction,) = detect(client, [rows_of(CAT)], [WIDE])
    assert prediction == {
        "detections": [
            {
                "label": "cat",
                "class_id": 0,
                "score": pytest.approx(0.81),
                "box": {"xmin": 160, "ymin": 100, "xmax": 240, "ymax": 140},
            }
        ],
        "image": {"width": 1280, "height": 720},
    }


def test_detections_are_sorted_by_score_and_suppressed_within_a_class_only(client: Client) -> None:
    worse_cat = (102, 201, 40, 20, 0.7, 0.9, 0.1, 0.0)
    (prediction,) = detect(client, [rows_of(SEVEN, worse_cat, DOG, CAT)], [WIDE])
    assert [found["label"] for found in prediction["detections"]] == ["cat", "dog", "7"]


def test_both_layouts_give_the_same_detections(labelled: Path) -> None:
    rows = rows_of(CAT, DOG, SEVEN)
    columns = np.concatenate((rows[:, :4], rows[:, 5:] * rows[:, 4:5]), 1).T
    old = detect(client_of(labelled), [rows], [WIDE])
    assert len(old[0]["detections"]) == 3
    assert detect(client_of(labelled, output_shape=(7, 100)), [columns], [WIDE]) == old
    assert detect(client_of(labelled, output_shape=(-1, -1), layout="yolov5u"), [columns], [WIDE]) == old


def test_boxes_over_the_edge_are_clipped(client: Client) -> None:
    (prediction,) = detect(client, [rows_of((10, 150, 100, 100, 1, 1, 0, 0))], [WIDE])
    assert prediction["detections"][0]["box"] == {"xmin": 0, "ymin": 0, "xmax": 120, "ymax": 120}


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ({"confidence": 0.5}, ["cat", "dog"]),
        ({"confidence": 1.0}, []),
        ({"max_detections": 1}, ["cat"]),
        ({"classes": ["dog", "7"]}, ["dog", "7"]),
        ({"classes": "dog, cat"}, ["cat", "dog"]),
        ({"classes": [2]}, ["7"]),
        ({"classes": "1"}, ["dog"]),
        ({"classes": "7"}, ["7"]),  # a label goes before an id
        ({"classes": []}, ["cat", "dog", "7"]),
    ],
)
def test_parameters_choose_detections(client: Client, given: dict[str, Any], labels: list[str]) -> None:
    (prediction,) = detect(client, [rows_of(CAT, DOG, SEVEN)], [WIDE], **given)
    assert [found["label"] for found in prediction["detections"]] == labels


@pytest.mark.parametrize(("iou", "count"), [(0.3, 1), (0.4, 2)])
def test_iou_sets_how_much_boxes_of_a_class_may_overlap(client: Client, iou: float, count: int) -> None:
    shifted = (120, 200, 40, 20, 0.7, 0.9, 0.1, 0.0)  # half of the box in common: IoU 1/3
    (prediction,) = detect(client, [rows_of(CAT, shifted)], [WIDE], iou=iou)
    assert len(prediction["detections"]) == count


@pytest.mark.parametrize(
    "given",
    [
        {"classes": ["cow"]},
        {"classes": [3]},
        {"classes": [True]},
        {"classes": 2},
        {"confidence": 1.5},
        {"iou": "much"},
        {"max_detections": 0},
        {"threshold": 0.1},
    ],
    ids=str,
)
def test_a_wrong_parameter_is_named(client: Client, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"'{next(iter(given))}'"):
        client.read_parameters(given)


def test_config_sets_the_defaults(labelled: Path) -> None:
    client = client_of(labelled, confidence="0.7", classes="dog,7")
    (prediction,) = detect(client, [rows_of(CAT, DOG, SEVEN)], [WIDE])
    assert [found["label"] for found in prediction["detections"]] == ["dog"]


def test_without_a_label_file_class_ids_are_the_labels(tmp_path: Path) -> None:
    (prediction,) = detect(client_of(tmp_path), [rows_of(SEVEN)], [WIDE], classes=["2"])
    assert [(found["label"], found["class_id"]) for found in prediction["detections"]] == [("2", 2)]


@pytest.mark.parametrize(
    "shapes",
    [
        {"output_shape": (25200, 85)},
        {"output_shape": (84, 8400)},
        {"output_shape": (-1, 5)},
        {"output_shape": (85,)},
        {"input_shape": (1, 640, 640)},
        {"datatype": "INT64"},
    ],
    ids=str,
)
def test_a_folder_that_does_not_fit_its_model_is_refused(labelled: Path, shapes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="output" if "output_shape" in shapes else "input"):
        client_of(labelled, **shapes)


def test_an_output_that_is_not_finite_is_an_error_and_not_an_answer(client: Client) -> None:
    with pytest.raises(InferenceFailed, match="'out'"):
        detect(client, [rows_of((np.nan, *CAT[1:]))], [WIDE])


def test_pixels_are_rgb_from_0_to_1_in_the_models_datatype(labelled: Path) -> None:
    for datatype, dtype in (("FP32", np.float32), ("FP16", np.float16)):
        (values,) = (
            client_of(labelled, datatype=datatype).preprocess([Image.new("RGB", (640, 640), (255, 51, 0))]).values()
        )
        assert values.dtype == dtype
        np.testing.assert_allclose(values[0, :, 320, 320], [1, 0.2, 0], atol=2e-4)


def test_pixels_are_0_to_255_where_the_model_takes_uint8(labelled: Path) -> None:
    (values,) = client_of(labelled, datatype="UINT8").preprocess([Image.new("RGB", (640, 640), (255, 51, 0))]).values()
    assert values.dtype == np.uint8
    assert values[0, :, 320, 320].tolist() == [255, 51, 0]


def test_a_model_with_its_own_batch_dimension_gets_it(labelled: Path) -> None:
    client = client_of(labelled, (1, 3, 320, 320), (1, -1, 8))
    assert client.preprocess([WIDE])["in"].shape == (1, 1, 3, 320, 320)
    (prediction,) = detect(client, [rows_of((160, 160, 16, 16, 1, 1, 0, 0))[None]], [WIDE])
    assert prediction["detections"][0]["box"] == {"xmin": 608, "ymin": 328, "xmax": 672, "ymax": 392}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(1280, 720)], (384, 640)),
        ([(640, 640)], (640, 640)),
        ([(100, 1000)], (640, 64)),
        ([(1280, 720), (100, 1000)], (640, 640)),
        ([(1280, 720), (640, 480)], (480, 640)),
    ],
)
def test_where_the_size_is_free_it_is_the_smallest_multiple_of_the_stride(
    labelled: Path, sizes: list[tuple[int, int]], expected: tuple[int, int]
) -> None:
    images = [Image.new("RGB", size) for size in sizes]
    assert client_of(labelled, (3, -1, -1)).preprocess(images)["in"].shape[2:] == expected


def test_drawing_changes_pixels_at_the_boxes_only(client: Client) -> None:
    (prediction,) = detect(client, [rows_of(CAT, SEVEN)], [WIDE])
    picture = client.draw(WIDE, prediction)
    assert picture.size == WIDE.size
    assert picture.getpixel((160, 120)) == class_colour(0)
    assert picture.getpixel((900, 300)) == class_colour(2)
    changed = np.asarray(ImageChops.difference(picture, WIDE)).any(2)
    changed[70:145, 155:270] = False  # the cat's frame and its text above
    changed[225:465, 895:905] = changed[225:465, 1095:1105] = False  # the seven's sides,
    changed[225:265, 895:1105] = changed[455:465, 895:1105] = False  # its text, top and bottom
    assert not changed.any()


def test_an_empty_prediction_draws_the_image_itself(client: Client) -> None:
    assert client.draw(WIDE, {"detections": []}).tobytes() == WIDE.tobytes()


def test_classes_have_colours_of_their_own() -> None:
    assert len({class_colour(class_id) for class_id in range(80)}) == 80


# The model that is committed, in ONNX Runtime in process.


@cache
def session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(FOLDER / "1" / "model.onnx"), options, ["CPUExecutionProvider"])


def digits_client() -> Client:
    inputs, outputs = (TensorSpec("images", "UINT8", (3, 640, 640)),), (TensorSpec("output0", "FP32", (1000, 15)),)
    return Client(Model("yolov5", FOLDER, inputs, outputs, 8, {}))


def predict(images: list[Image.Image], given: Mapping[str, Any]) -> list[Any]:
    client = digits_client()
    inputs = client.preprocess(images)
    (output,) = session().run(None, inputs)
    return client.postprocess({"output0": output}, inputs, images, client.read_parameters(given))


def corners(detections: Detections) -> NDArray[np.float64]:
    return np.array([list(found["box"].values()) for found in detections]).reshape(-1, 4)


def iou_matrix(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    common = (high - low).clip(0).prod(2)
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(1), (b[:, 2:] - b[:, :2]).prod(1)
    overlap: NDArray[np.float64] = common / (area_a[:, None] + area_b[None] - common)
    return overlap


def hits(detections: Detections, truth: NDArray[Any], threshold: float) -> list[bool]:
    """COCO's matching: best score first, each to the free true box of the highest IoU from the threshold on."""
    overlaps, matched = iou_matrix(corners(detections), truth), []
    for row in overlaps:
        free = row.max(initial=0) >= threshold
        if free:
            overlaps[:, row.argmax()] = 0
        matched.append(bool(free))
    return matched


def average_precision(scores: NDArray[Any], correct: NDArray[Any], count: int) -> float:
    """COCO's: the mean over 101 recalls of the best precision at that recall or a higher one (Lin et al. 2014,
    as in pycocotools' COCOeval.accumulate)."""
    found = np.cumsum(correct[np.argsort(-scores, kind="stable")])
    recall, precision = found / count, found / np.arange(1, len(found) + 1)
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0)
    return float(best[np.searchsorted(recall, np.linspace(0, 1, 101))].mean())


def mean_average_precision(predictions: list[Detections], truths: list[Any], threshold: float) -> float:
    """Over the ten classes, at one IoU threshold."""
    precisions = []
    for class_id in range(10):
        scores, correct, count = [], [], 0
        for detections, page in zip(predictions, truths, strict=True):
            mine = [found for found in detections if found["class_id"] == class_id]
            truth = page.boxes[page.labels == class_id]
            scores += [found["score"] for found in mine]
            correct += hits(mine, truth, threshold)
            count += len(truth)
        precisions.append(average_precision(np.array(scores), np.array(correct), count))
    return float(np.mean(precisions))


def test_average_precision_agrees_with_a_worked_example() -> None:
    scores, correct = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False])
    # precision 1 up to recall 1/4 (26 points), 2/3 up to 2/4 (25 points), 0 beyond (50 points)
    assert average_precision(scores, correct, 4) == pytest.approx((26 + 25 * 2 / 3) / 101)


@pytest.mark.timeout(6 * PATIENCE)
def test_map50_is_at_least_090_on_held_out_pages_of_another_generator() -> None:
    pages = list(islice(held_out_pages(100), 100))
    predictions = [predict([page.image], {"confidence": 0.001, "iou": 0.6})[0]["detections"] for page in pages]
    assert sum(len(page.labels) for page in pages) > 1000
    assert mean_average_precision(predictions, pages, 0.5) >= 0.9


def test_a_batch_of_different_sizes_equals_single_calls() -> None:
    images = [page.image for page in islice(held_out_pages(5), 6)]
    together, apart = predict(images, {}), [predict([image], {})[0] for image in images]
    assert sum(len(prediction["detections"]) for prediction in together) > 20
    for one, other in zip(together, apart, strict=True):
        assert one["image"] == other["image"]
        assert [found["label"] for found in one["detections"]] == [found["label"] for found in other["detections"]]
        np.testing.assert_allclose(corners(one["detections"]), corners(other["detections"]), atol=0.02)


def test_the_folders_example_is_a_page_whose_digits_are_found() -> None:
    (file,) = FOLDER.glob("example.*")
    (prediction,) = predict([Image.open(file).convert("RGB")], {})
    assert len(prediction["detections"]) >= 5
    assert all(re.fullmatch(r"\d", found["label"]) for found in prediction["detections"])


def found(*corners: float) -> dict[str, Any]:
    return {"label": "cat", "box": dict(zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True))}
