"""Tests the client for detectors: both layouts of the output, and its parameters. test_invocations
tests the accuracy of the bundled model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageChops

from clients._drawing import class_colour
from clients.base import Model, TensorSpec
from clients.object_detection import Client, Pixels
from serving.errors import InferenceFailed, InvalidRequest

pytestmark = pytest.mark.unit

LABELS = ["cat", "dog", "7"]


def client_of(
    folder: Path,
    input_shape: tuple[int, ...] = (3, 640, 640),
    output_shape: tuple[int, ...] = (-1, 8),
    datatype: str = "FP32",
    **parameters: str,
) -> Client:
    inputs, outputs = (
        (TensorSpec("in", datatype, input_shape),),
        (TensorSpec("out", "FP32", output_shape),),
    )
    return Client(Model("detector", folder, inputs, outputs, 8, parameters))


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    (tmp_path / "labels.txt").write_text("\n".join(LABELS) + "\n")
    return tmp_path


@pytest.fixture
def client(labelled: Path) -> Client:
    return client_of(labelled)


def rows_of(*rows: tuple[float, ...]) -> NDArray[np.float32]:
    """Return a YOLOv5 output [100,8] for three classes: `rows`, followed by rows without
    objects."""
    table = np.zeros((100, 8), np.float32)
    table[10 : 10 + len(rows)] = rows
    return table


def detect(client: Client, tables: Any, images: list[Pixels], **parameters: Any) -> list[Any]:
    inputs = client.prepare(images, {})
    return client.postprocess(
        {"out": np.asarray(tables)}, inputs, images, client.read_parameters(parameters)
    )


CAT = (100, 200, 40, 20, 0.9, 0.9, 0.1, 0.0)
DOG = (100, 200, 40, 20, 0.8, 0.1, 0.9, 0.0)
SEVEN = (500, 320, 100, 100, 0.5, 0.2, 0.1, 0.8)
# in the target it has half its size, and lies 140 pixels below the top
WIDE = np.full((720, 1280, 3), 255, np.uint8)


def test_return_detections_in_pixels_of_the_original_image(client: Client) -> None:
    (prediction,) = detect(client, [rows_of(CAT)], [WIDE])
    box = {"xmin": 160, "ymin": 100, "xmax": 240, "ymax": 140}
    assert prediction == {
        "detections": [{"label": "cat", "class_id": 0, "score": pytest.approx(0.81), "box": box}],
        "image": {"width": 1280, "height": 720},
    }


def test_return_the_same_detections_for_both_layouts(labelled: Path) -> None:
    rows = rows_of(CAT, DOG, SEVEN)
    columns = np.concatenate((rows[:, :4], rows[:, 5:] * rows[:, 4:5]), 1).T
    old = detect(client_of(labelled), [rows], [WIDE])
    assert len(old[0]["detections"]) == 3
    assert detect(client_of(labelled, output_shape=(7, 100)), [columns], [WIDE]) == old
    assert (
        detect(client_of(labelled, output_shape=(-1, -1), layout="yolov5u"), [columns], [WIDE])
        == old
    )


def test_compare_fp16_scores_in_fp32(labelled: Path) -> None:
    # 0.3 is 0.30005 in FP16
    low = np.tile(np.array((*CAT[:4], 0.3, 1, 0, 0), np.float16), (1, 100, 1))
    heads = {
        (-1, 8): low,
        (7, 100): low[..., [0, 1, 2, 3, 4, 6, 7]].swapaxes(1, 2),
        (100, 6): low[..., [*range(5), 6]],
    }
    for shape, tables in heads.items():
        assert detect(client_of(labelled, output_shape=shape), tables, [WIDE], confidence=0.3)[0][
            "detections"
        ]


def test_clip_boxes_at_the_edge(client: Client) -> None:
    (prediction,) = detect(client, [rows_of((10, 150, 100, 100, 1, 1, 0, 0))], [WIDE])
    assert prediction["detections"][0]["box"] == {"xmin": 0, "ymin": 0, "xmax": 120, "ymax": 120}


@pytest.mark.parametrize(
    ("parameters", "labels"),
    [
        ({"confidence": 0.5}, ["cat", "dog"]),
        ({"max_detections": 1}, ["cat"]),
        ({"classes": ["dog", "7"]}, ["dog", "7"]),
        ({"classes": "dog, cat"}, ["cat", "dog"]),
        ({"classes": [2]}, ["7"]),
        ({"classes": "7"}, ["7"]),  # a label takes precedence over a class id
        ({"classes": []}, ["cat", "dog", "7"]),
    ],
)
def test_filter_detections_by_parameters(
    client: Client, parameters: dict[str, Any], labels: list[str]
) -> None:
    # overlaps CAT, and also DOG, which has another class
    worse_cat = (102, 201, 40, 20, 0.7, 0.9, 0.1, 0.0)
    (prediction,) = detect(client, [rows_of(SEVEN, worse_cat, DOG, CAT)], [WIDE], **parameters)
    assert [detection["label"] for detection in prediction["detections"]] == labels


@pytest.mark.parametrize(("iou", "count"), [(0.3, 1), (0.4, 2)])
def test_limit_the_overlap_of_boxes_by_iou(client: Client, iou: float, count: int) -> None:
    shifted = (120, 200, 40, 20, 0.7, 0.9, 0.1, 0.0)  # half of the box overlaps: IoU 1/3
    (prediction,) = detect(client, [rows_of(CAT, shifted)], [WIDE], iou=iou)
    assert len(prediction["detections"]) == count


@pytest.mark.parametrize(
    "parameters",
    [
        *({"classes": each} for each in (["cow"], [True], 2, "9" * 5000)),
        {"confidence": 1.5},
        {"threshold": 0.1},
    ],
)
def test_name_a_wrong_parameter(client: Client, parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"'{next(iter(parameters))}'"):
        client.read_parameters(parameters)


def test_take_the_defaults_from_the_config(labelled: Path) -> None:
    client = client_of(labelled, confidence="0.7", classes="dog,7")
    (prediction,) = detect(client, [rows_of(CAT, DOG, SEVEN)], [WIDE])
    assert [detection["label"] for detection in prediction["detections"]] == ["dog"]


def test_use_class_ids_as_labels_without_a_label_file(tmp_path: Path) -> None:
    (prediction,) = detect(client_of(tmp_path), [rows_of(SEVEN)], [WIDE], classes=["2"])
    assert [
        (detection["label"], detection["class_id"]) for detection in prediction["detections"]
    ] == [("2", 2)]


def test_select_all_classes_that_share_a_label(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\ncat\n")
    assert client_of(tmp_path).class_ids(["cat", "1"]) == (0, 2, 1)


@pytest.mark.parametrize(
    "shapes",
    [
        {"output_shape": (25200, 85)},
        {"output_shape": (84, 8400)},
        {"output_shape": (-1, 5)},
        {"output_shape": (1, -1, -1)},
        {"input_shape": (1, 640, 640)},
        {"datatype": "INT64"},
    ],
    ids=str,
)
def test_refuse_folders_that_do_not_fit(labelled: Path, shapes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="output" if "output_shape" in shapes else "input"):
        client_of(labelled, **shapes)


def test_answer_an_error_if_an_output_is_not_finite(client: Client) -> None:
    with pytest.raises(InferenceFailed, match="'out'"):
        detect(client, [rows_of((np.nan, *CAT[1:]))], [WIDE])


@pytest.mark.parametrize(
    ("datatype", "dtype", "pixel"),
    [
        ("FP32", np.float32, [1, 0.2, 0]),
        ("FP16", np.float16, [1, 0.2, 0]),
        ("UINT8", np.uint8, [255, 51, 0]),
    ],
)
def test_scale_pixels_to_1_or_keep_255_in_uint8(
    labelled: Path, datatype: str, dtype: Any, pixel: Any
) -> None:
    client = client_of(labelled, datatype=datatype)
    orange = np.full((640, 640, 3), (255, 51, 0), np.uint8)
    (values,) = client.prepare([orange], {}).values()
    assert values.dtype == dtype
    np.testing.assert_allclose(values[0, :, 320, 320], pixel, atol=2e-4)


def test_keep_the_batch_dimension_of_a_model(labelled: Path) -> None:
    client = client_of(labelled, (1, 3, 320, 320), (1, -1, 8))
    assert client.prepare([WIDE], {})["in"].shape == (1, 1, 3, 320, 320)
    (prediction,) = detect(client, [rows_of((160, 160, 16, 16, 1, 1, 0, 0))[None]], [WIDE])
    assert prediction["detections"][0]["box"] == {
        "xmin": 608,
        "ymin": 328,
        "xmax": 672,
        "ymax": 392,
    }


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(1280, 720)], (384, 640)),
        ([(100, 1000)], (640, 64)),
        ([(1280, 720), (100, 1000)], (640, 640)),
        ([(1280, 720), (640, 480)], (480, 640)),
    ],
)
def test_round_a_free_size_to_the_stride(
    labelled: Path, sizes: list[tuple[int, int]], expected: tuple[int, int]
) -> None:
    images = [np.zeros((height, width, 3), np.uint8) for width, height in sizes]
    assert client_of(labelled, (3, -1, -1)).prepare(images, {})["in"].shape[2:] == expected


def test_draw_only_at_the_boxes(client: Client) -> None:
    (prediction,) = detect(client, [rows_of(CAT, SEVEN)], [WIDE])
    picture = client.draw(WIDE, prediction)
    for detection in prediction["detections"]:
        xmin, ymin, xmax, ymax = detection["box"].values()
        detection["box"] = {"xmin": xmax, "ymin": ymax, "xmax": xmin, "ymax": ymin}
    assert client.draw(WIDE, prediction) == picture
    assert picture.size == (1280, 720)
    assert picture.getpixel((160, 120)) == class_colour(0)
    assert picture.getpixel((900, 300)) == class_colour(2)
    changed = np.asarray(ImageChops.difference(picture, Image.fromarray(WIDE))).any(2)
    changed[70:145, 155:270] = False  # the cat's frame and the label above it
    # the left and right sides of the seven's frame
    changed[225:465, 895:905] = changed[225:465, 1095:1105] = False
    # its label, and the top and bottom of its frame
    changed[225:265, 895:1105] = changed[455:465, 895:1105] = False
    assert not changed.any()
