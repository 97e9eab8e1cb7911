"""Tests the client for image classifiers: its preprocessing against transformers' and Pillow's, its
settings and its predictions."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.image_transforms import get_size_with_aspect_ratio
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
from transformers.models.yolos.image_processing_pil_yolos import get_size_with_aspect_ratio_yolos

from clients._resize import kept_ratio
from clients.base import Model, TensorSpec, softmax
from clients.image_classification import Client
from serving.errors import DecodingError, InferenceFailed, InvalidRequest

pytestmark = pytest.mark.full

SIZES = [(500, 375), (375, 500), (224, 224), (640, 200), (97, 333), (30, 41), (1, 9), (1023, 767)]
ONLY_CUT = {"do_rescale": False, "do_normalize": False}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def client_of(
    shape: tuple[int, ...] = (3, 224, 224),
    *,
    folder: Path = Path("/nonexistent"),
    datatype: str = "FP32",
    classes: tuple[int, ...] = (10,),
    max_batch_size: int = 8,
    **parameters: str,
) -> Client:
    inputs, outputs = (
        (TensorSpec("pixels", datatype, shape),),
        (TensorSpec("scores", datatype, classes),),
    )
    return Client(Model("classifier", folder, inputs, outputs, max_batch_size, parameters))


def photo(size: tuple[int, int] = (60, 40), seed: int = 0) -> Image.Image:
    """Return a smooth picture in colour with some noise, like a photo."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    pixels = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), np.int16)
    noisy = np.clip(pixels + rng.integers(-20, 20, pixels.shape), 0, 255)
    return Image.fromarray(noisy.astype(np.uint8))


def pixels(client: Client, *images: Image.Image) -> Any:
    return client.prepare(images, {})["pixels"]


def predict(client: Client, rows: Any, top_k: int = 5) -> list[Any]:
    outputs = {"scores": np.asarray(rows)}
    return client.postprocess(
        outputs, {}, [None] * len(rows), client.read_parameters({"top_k": top_k})
    )


def ids(prediction: Mapping[str, Any]) -> list[int]:
    return [entry["class_id"] for entry in prediction["classes"]]


@pytest.mark.parametrize(
    ("size", "interpolation", "side", "crop_pct"),
    [
        (
            size,
            ("box", "bilinear", "bicubic", "lanczos")[index % 4],
            *((224, 0.875), (288, 0.95), (64, 1.0))[index % 3],
        )
        for index, size in enumerate(SIZES)
    ],
)
def test_resize_the_shortest_side_nearly_as_transformers_does(
    size: tuple[int, int], interpolation: str, side: int, crop_pct: float
) -> None:
    """Only the crop is computed here. Pillow rounds between its horizontal and vertical pass, whose
    order depends on the size."""
    method = Image.Resampling[interpolation.upper()]
    reference = ConvNextImageProcessorPil(
        size={"shortest_edge": side}, crop_pct=crop_pct, resample=method, **ONLY_CUT
    )
    expected = reference(photo(size), return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
    client = client_of((3, side, side), interpolation=interpolation, crop_pct=str(crop_pct))
    differences = np.abs(client.fit(photo(size)).astype(np.float32) - expected)
    assert differences.max() <= 6
    assert differences.mean() < 0.3
    assert size[1] > size[0] or np.mean(differences > 0) < 0.005


@pytest.mark.parametrize(
    "size", [(804, 600), (600, 804), (800, 600), (640, 427), (427, 640), (300, 300)]
)
def test_crop_exactly_as_transformers_does(size: tuple[int, int]) -> None:
    image = photo(size)
    reference = ConvNextImageProcessorPil(
        size={"shortest_edge": 224}, crop_pct=0.875, resample=2, **ONLY_CUT
    )
    theirs = reference(image, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
    np.testing.assert_array_equal(client_of(exact="true").fit(image), theirs)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("target", [(224, 224), (96, 160)])
def test_stretch_as_transformers_image_processor_does(
    size: tuple[int, int], target: tuple[int, int]
) -> None:
    client = client_of((3, *target), resize="stretch")
    reference = ViTImageProcessorPil(
        size={"height": target[0], "width": target[1]}, image_mean=MEAN, image_std=STD
    )
    expected = reference(photo(size), return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(pixels(client, photo(size)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [(500, 250), (250, 500), (64, 64), (20, 40), (300, 10)])
def test_pad_as_pillow_does(size: tuple[int, int]) -> None:
    client = client_of((3, 64, 64), resize="pad", pad_value="114")
    expected = ImageOps.pad(photo(size), (64, 64), Image.Resampling.BILINEAR, (114, 114, 114))
    np.testing.assert_array_equal(client.fit(photo(size)), np.asarray(expected))


def test_cover_a_frame_that_is_not_square_and_crop_the_centre() -> None:
    image = Image.new("RGB", (300, 100), "black")
    image.paste("white", (100, 0, 200, 100))
    assert client_of((3, 50, 50), crop_pct="1").fit(image)[:, 1:-1].min() == 255
    wide = client_of((3, 50, 100), crop_pct="1").fit(image)
    assert wide.shape == (50, 100, 3)
    assert wide[25, [0, 20, 50, 80, 99], 0].tolist() == [0, 0, 255, 0, 0]


@pytest.mark.parametrize("size", [(1, 50_000), (50_000, 1)])
@pytest.mark.parametrize("resize", ["shortest", "stretch", "pad"])
def test_crop_a_ribbon_without_enlarging_it_first(size: tuple[int, int], resize: str) -> None:
    """If the image were resized first, with a shorter side of 256 pixels, it would take 10 GB."""
    assert pixels(client_of(resize=resize), Image.new("RGB", size, "red")).shape == (1, 3, 224, 224)


def test_crop_a_ribbon_at_the_same_place_as_other_images() -> None:
    ribbon = photo((20 * 32, 32)).convert("RGB")
    client = client_of((3, 32, 32), crop_pct="1", scale="1", mean="0", std="1")
    expected = np.asarray(ribbon.crop((304, 0, 336, 32))).transpose(2, 0, 1)
    np.testing.assert_array_equal(pixels(client, ribbon)[0], expected)


@pytest.mark.parametrize(
    ("settings", "pixel"),
    [
        ({"scale": "0.5", "mean": "1,2,3", "std": "2,4,8"}, [2.0, 2.0, 1.5]),
        ({"scale": "1", "mean": "10", "std": "2"}, [0, 5, 10]),  # one value for all channels
        # the mean is also in the order BGR
        ({"channel_order": "bgr", "scale": "1", "mean": "1,2,3", "std": "1"}, [29, 18, 7]),
    ],
)
def test_scale_pixels_and_normalise_them_by_mean_and_std(
    settings: dict[str, Any], pixel: list[float]
) -> None:
    tensor = pixels(client_of((3, 4, 4), **settings), Image.new("RGB", (9, 9), (10, 20, 30)))
    assert tensor[0, :, 0, 0].tolist() == pixel


@pytest.mark.parametrize("size", [(50, 40), (40, 50)])
def test_put_the_channels_last_for_nhwc(size: tuple[int, int]) -> None:
    first, last = client_of((3, 32, 24)), client_of((32, 24, 3))
    expected = pixels(first, photo(size), photo(size, 1))
    actual = pixels(last, photo(size), photo(size, 1))
    np.testing.assert_array_equal(actual, expected.transpose(0, 2, 3, 1))


def test_convert_to_grey_for_one_channel() -> None:
    client = client_of((1, 28, 28), mean="0", std="1", resize="stretch")
    tensor = pixels(client, photo())
    expected = np.asarray(photo().convert("L").resize((28, 28), Image.Resampling.BILINEAR)) / 255
    np.testing.assert_allclose(tensor[0, 0], expected, atol=1e-6)
    padded = client_of((28, 28, 1), mean="0", std="1", resize="pad", pad_value="9")
    assert padded.fit(photo()).shape == (28, 28, 1)


@pytest.mark.parametrize(
    ("datatype", "numpy_type"), [("FP16", np.float16), ("FP32", np.float32), ("FP64", np.float64)]
)
def test_make_the_tensor_in_the_input_s_datatype(datatype: str, numpy_type: Any) -> None:
    tensor = pixels(client_of(datatype=datatype), photo())
    assert tensor.dtype == numpy_type
    np.testing.assert_allclose(tensor, pixels(client_of(), photo()), atol=2e-3)


def test_pass_raw_pixels_to_an_input_of_uint8() -> None:
    client = client_of((24, 32, 3), datatype="UINT8", classes=(10,))
    np.testing.assert_array_equal(pixels(client, photo((64, 48)))[0], client.fit(photo((64, 48))))


def test_take_a_variable_size_from_the_setting() -> None:
    assert pixels(client_of((3, -1, -1), size="48"), photo()).shape == (1, 3, 48, 48)
    assert pixels(client_of((-1, -1, -1), size="48,64", layout="nhwc"), photo()).shape == (
        1,
        48,
        64,
        3,
    )


def test_add_a_batch_dimension_of_the_model_s_own_to_every_row() -> None:
    client = client_of((1, 3, 32, 32), classes=(1, 10), max_batch_size=0)
    assert pixels(client, photo(), photo()).shape == (2, 1, 3, 32, 32)
    assert ids(predict(client, np.eye(10, dtype=np.float32)[None, 3:4], top_k=1)[0]) == [3]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"shape": (3, -1, -1)}, "size"),
        ({"shape": (3, 224, 224), "size": "256"}, "size"),
        ({"size": "1,2,3"}, "size"),
        ({"shape": (12,)}, "pixels"),
        ({"shape": (4, 32, 32), "layout": "nchw"}, "pixels"),
        ({"shape": (1, 28, 28)}, "mean"),
        ({"std": "0"}, "std"),
        ({"resize": "squash"}, "resize"),
        ({"crop_pct": "0"}, "crop_pct"),
        ({"interpolation": "cubic"}, "interpolation"),
        ({"pad_value": "256"}, "pad_value"),
        ({"scale": "x"}, "scale"),
        ({"resize_to": "4"}, "resize_to"),
        ({"shape": (3, -1, -1), "resize": "keep_ratio", "resize_to": "8,9", "size": "8"}, "size"),
        ({"shape": (3, -1, -1), "resize": "keep_ratio", "resize_to": "8,9"}, "resize"),
    ],
    ids=str,
)
def test_name_a_setting_that_does_not_fit(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}'"):
        client_of(**arguments)


def test_read_labels_from_the_folder_or_use_class_ids(tmp_path: Path) -> None:
    rows = np.array([[0, 3, 1]], np.float32)
    assert [c["label"] for c in predict(client_of(classes=(3,)), rows)[0]["classes"]] == [
        "1",
        "2",
        "0",
    ]
    (tmp_path / "labels.txt").write_text("hen\ncock\nduck\n")
    labelled = client_of(classes=(3,), folder=tmp_path)
    assert [c["label"] for c in predict(labelled, rows)[0]["classes"]] == ["cock", "duck", "hen"]
    (tmp_path / "birds.txt").write_text("a \r\n\nb\u2028b\nc\n")
    with pytest.raises(OSError, match=r"none\.txt"):
        client_of(folder=tmp_path, labels="none.txt")
    renamed = client_of(classes=(3,), folder=tmp_path, labels="birds.txt")
    assert predict(renamed, rows, top_k=1)[0]["classes"][0]["label"] == "b\u2028b"


@pytest.mark.parametrize("classes", [(10,), (10, 1, 1)])
def test_refuse_labels_that_do_not_match_the_output(
    tmp_path: Path, classes: tuple[int, ...]
) -> None:
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    with pytest.raises(InvalidRequest, match="'scores'"):
        client_of(classes=classes, folder=tmp_path)


def test_count_labels_against_the_output_if_its_size_varies(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    client = client_of(classes=(-1,), folder=tmp_path)
    assert predict(client, np.zeros((1, 3), np.float32))[0]["classes"][0]["label"] == "a"
    with pytest.raises(InferenceFailed, match="'scores'"):
        predict(client, np.zeros((1, 4), np.float32))


def test_return_classes_best_first_in_the_order_of_images() -> None:
    rows = np.random.default_rng(0).normal(size=(32, 1000)).astype(np.float32)
    predictions = predict(client_of(classes=(1000,)), rows, top_k=7)
    for row, prediction in zip(rows.astype(np.float64), predictions, strict=True):
        expected = sorted(range(1000), key=lambda i, row=row: (-row[i], i))[:7]  # type: ignore[misc]
        assert ids(prediction) == expected
        share = np.exp(row) / np.exp(row).sum()
        np.testing.assert_allclose(
            [c["score"] for c in prediction["classes"]], share[expected], rtol=1e-4
        )


def test_sum_softmax_to_one_even_for_huge_logits() -> None:
    scores = softmax(np.array([[1e4, 1e4, -1e4], [-1e30, 0, 1e30]], np.float32))
    np.testing.assert_allclose(scores, [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])


@pytest.mark.parametrize(
    ("activation", "score"), [("softmax", 0.8808), ("sigmoid", 0.8808), ("none", 2.0)]
)
def test_score_a_single_logit(activation: str, score: float) -> None:
    (prediction,) = predict(client_of(classes=(1,), activation=activation), [[2.0]])
    assert [c["score"] for c in prediction["classes"]] == pytest.approx([score], abs=1e-4)


def test_keep_probabilities_and_order_equal_scores_by_class_id() -> None:
    client = client_of(classes=(3,), activation="none")
    (prediction,) = predict(client, [[0.25, 0.5, 0.25]])
    assert [(c["class_id"], c["score"]) for c in prediction["classes"]] == [
        (1, 0.5),
        (0, 0.25),
        (2, 0.25),
    ]


@pytest.mark.parametrize(
    ("shape", "datatype"),
    [((2, 10), np.float16), ((2, 10, 1, 1), np.float32), ((2, 1, 10), np.float64)],
)
def test_accept_outputs_of_any_float_and_with_dimensions_of_one(
    shape: tuple[int, ...], datatype: Any
) -> None:
    rows = np.zeros((2, 10), datatype)
    rows[0, 4] = rows[1, 9] = 5
    predictions = predict(client_of(datatype="FP16"), rows.reshape(shape))
    assert [ids(p)[0] for p in predictions] == [4, 9]
    assert json.loads(json.dumps(predictions)) == predictions


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_answer_an_error_if_an_output_is_not_finite(value: float) -> None:
    with pytest.raises(InferenceFailed, match="'scores'"):
        predict(client_of(), np.full((1, 10), value, np.float32))


def test_return_five_classes_by_default() -> None:
    assert client_of().read_parameters({}) == {"top_k": 5}
    assert client_of(top_k="2").read_parameters({}) == {"top_k": 2}
    assert client_of(top_k="2").read_parameters({"top_k": "3"}) == {"top_k": 3}
    assert len(predict(client_of(), np.zeros((1, 10), np.float32), top_k=1000)[0]["classes"]) == 10


@pytest.mark.parametrize(("shorter", "longer"), [(800, 1333), (64, 96), (1000, 1000), (900, 800)])
def test_size_images_as_transformers_does_keeping_proportions(shorter: int, longer: int) -> None:
    draw = random.Random(0)
    edges = (shorter, longer - 1, longer, longer + 1)
    for most in (50, 2000, 20000):
        for _ in range(2000):
            size = (
                draw.choice([*edges, *(draw.randint(1, most) for _ in range(9))]),
                draw.randint(1, most),
            )
            for sides in (size, size[::-1]):
                assert kept_ratio(*sides, shorter, longer, 1) == get_size_with_aspect_ratio(
                    sides, shorter, longer
                )
                yolos = get_size_with_aspect_ratio_yolos(sides, shorter, longer)
                assert kept_ratio(*sides, shorter, longer, 16) == yolos


def test_refuse_an_image_that_is_too_narrow() -> None:
    client = client_of(
        (3, -1, -1), max_batch_size=1, resize="keep_ratio", resize_to="64,96", size_divisor="16"
    )
    assert client.fit(Image.new("RGB", (600, 100))).shape == (16, 96, 3)
    with pytest.raises(DecodingError, match="700×100"):
        client.fit(Image.new("RGB", (700, 100)))
