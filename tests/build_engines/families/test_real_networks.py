"""Tests the ONNX files of EfficientNet-Lite0 and YOLOv4-tiny against PyTorch and OpenCV with the
same weights."""

import importlib
from importlib import metadata
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from build_engines.errors import BuildError
from build_engines.families import efficientnet, yolov4_tiny
from build_engines.packages import file_of
from tests.build_engines.models import session
from tests.support.harness import ROOT

pytestmark = pytest.mark.full

CFG, WEIGHTS = (
    file_of(yolov4_tiny.PACKAGE, f"yolov4-tiny.{suffix}") for suffix in ("cfg", "weights")
)


def photo(name: str) -> Image.Image:
    """Return a photo from the package scikit-image, which is installed without its dependencies."""
    return Image.open(
        str(metadata.distribution("scikit-image").locate_file(f"skimage/data/{name}.png"))
    ).convert("RGB")


def pixels(side: int) -> NDArray[np.uint8]:
    photos = [
        photo(name).resize((side, side)) for name in ("coffee", "chelsea", "astronaut", "camera")
    ]
    return np.stack([np.asarray(image).transpose(2, 0, 1) for image in photos])


def onnx_output(model: str, images: NDArray[np.uint8]) -> Any:
    return session(ROOT / "model_repository" / model / "1/model.onnx").run(
        None, {"images": images}
    )[0]


def test_get_the_logits_of_pytorch_from_efficientnet() -> None:
    network = (
        importlib.import_module("efficientnet_lite_pytorch")
        .EfficientNet.from_name("efficientnet-lite0")
        .eval()
    )
    network.load_state_dict(torch.load(file_of(*efficientnet.WEIGHTS), weights_only=True))
    images = pixels(224)
    with torch.no_grad():
        expected = network((torch.from_numpy(images).float() - 127) / 128).numpy()
    assert np.abs(onnx_output("efficientnet", images) - expected).max() < 1e-4


def test_get_the_boxes_of_opencv_from_yolov4_tiny() -> None:
    network = cv2.dnn.readNetFromDarknet(str(CFG), str(WEIGHTS))
    for image in pixels(416):
        network.setInput(image[None].astype(np.float32) / 255)
        expected = np.concatenate(
            [rows(head) for head in network.forward(network.getUnconnectedOutLayersNames())]
        )
        output = onnx_output("yolov4_tiny", image[None])[0]
        assert np.abs(output[:, :4] / 416 - expected[:, :4]).max() < 1e-4
        assert np.abs(output[:, 4] - expected[:, 4]).max() < 1e-3
        scores = output[:, 5:] * output[:, 4:5]
        kept = expected[:, 5:] > 0  # OpenCV sets scores below the .cfg file's threshold to 0
        assert kept.any() and np.abs(scores - expected[:, 5:])[kept].max() < 1e-3


def rows(head: NDArray[np.float32]) -> NDArray[np.float32]:
    """Reorder OpenCV's rows, which list the anchors of each cell. The ONNX file lists the cells of
    each anchor."""
    side = int((len(head) / 3) ** 0.5)
    return head.reshape(side, side, 3, -1).transpose(2, 0, 1, 3).reshape(len(head), -1)


@pytest.mark.parametrize("change", [b"", b"\0" * 4])
def test_refuse_weights_of_another_length(change: bytes, tmp_path: Path) -> None:
    content = WEIGHTS.read_bytes()
    (tmp_path / "weights").write_bytes(content + change if change else content[:-4])
    with pytest.raises(BuildError):
        yolov4_tiny.write_network(tmp_path / "weights", tmp_path / "model.onnx")
