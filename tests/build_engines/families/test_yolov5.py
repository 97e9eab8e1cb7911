"""Tests YOLOv5's checkpoints, which a stand-in for the release writes, and the network that is
exported from them."""

import os
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn

from build_engines.build import build
from build_engines.errors import BuildError, UsageError
from build_engines.families.object_detection import FAMILY
from build_engines.families.yolov5 import read, write_model
from build_engines.request import Request
from build_engines.weights import Weights
from tests.build_engines.yolov5_release import C3, random_release, save

pytestmark = pytest.mark.full


def test_answer_as_the_yolov5_release_does(tmp_path: Path) -> None:
    model = random_release(7)
    network, names = read(save(model, tmp_path / "best.pt"))
    pixels = torch.randint(0, 256, (2, 3, 32, 64), dtype=torch.uint8)
    with torch.inference_mode():
        ours, theirs = network(pixels), model(pixels / 255)
    assert ours.shape == (2, 3 * (32 + 8 + 2), 12)
    for mine, wanted in zip(ours, theirs, strict=True):  # the rows are in no particular order
        nearest = torch.cdist(mine.double(), wanted.double()).min(1)
        assert float(nearest.values.max()) < 0.01
        assert len(nearest.indices.unique()) == len(wanted)
    assert names == tuple(f"thing {number}" for number in range(7))


def test_return_the_network_s_best_boxes_at_any_batch_size(tmp_path: Path) -> None:
    model = random_release(3)
    model.names = {0: "cat", 1: "dog", 2: "fox"}
    request = Request(
        "pets",
        str(save(model, tmp_path / "best.pt")),
        client="yolov5",
        size=160,
        repository=tmp_path,
    )
    folder, _ = build(request)
    assert (folder / "labels.txt").read_text() == "cat\ndog\nfox\n"
    pixels = torch.randint(0, 256, (3, 3, 160, 160), dtype=torch.uint8)
    network, _ = read(tmp_path / "best.pt")
    with torch.inference_mode():
        expected = network(pixels)[..., 4].sort().values
    session = onnxruntime.InferenceSession(
        str(folder / "1/model.onnx"), providers=["CPUExecutionProvider"]
    )
    for count in (1, 3):
        (output,) = session.run(["output0"], {"images": pixels[:count].numpy()})
        assert output.shape == (count, 1000, 8)
        scores = torch.from_numpy(output[..., 4]).sort().values
        torch.testing.assert_close(scores, expected[:count], rtol=1e-3, atol=1e-3)


def test_prefer_the_moving_average(tmp_path: Path) -> None:
    model, other = random_release(2), random_release(2)
    with torch.no_grad():
        other.model[0].conv.weight.zero_()
    network, _ = read(save(model, tmp_path / "best.pt", ema=other.half()))
    assert network.state_dict()["model.0.conv.weight"].abs().max() == 0


@pytest.mark.parametrize("change", [{"model": None}, {"model": nn.Linear(2, 2)}, "cut off"])
def test_refuse_another_checkpoint(change: Any, tmp_path: Path) -> None:
    path = save(
        random_release(2), tmp_path / "best.pt", **(change if isinstance(change, dict) else {})
    )
    if change == "cut off":
        path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(BuildError):
        read(path)


class Bomb:
    """An object that calls a function when pickle reads it."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("function", [os.mkdir, os.system, open])
def test_run_no_code_in_a_checkpoint(function: Any, tmp_path: Path) -> None:
    trace = tmp_path / "made"
    words = {os.mkdir: [str(trace)], os.system: [f"touch {trace}"], open: [str(trace), "w"]}[
        function
    ]
    torch.save({"model": Bomb(function, *words)}, tmp_path / "bomb.pt")
    with pytest.raises(BuildError):
        read(tmp_path / "bomb.pt")
    assert not trace.exists()
    torch.load(tmp_path / "bomb.pt", weights_only=False)
    assert trace.exists()  # a plain unpickler would run the code


def test_refuse_another_structure_with_the_export_command(tmp_path: Path) -> None:
    model = random_release(2)
    model.model[9].cv1 = C3(256, 256, 1)
    with pytest.raises(BuildError) as refused:
        read(save(model, tmp_path / "best.pt"))
    assert "format=onnx" in str(refused.value)


@pytest.mark.parametrize("size", [300, 31])
def test_refuse_a_size_that_the_stride_does_not_divide(size: int, tmp_path: Path) -> None:
    (tmp_path / "best.pt").touch()
    with pytest.raises(UsageError):
        write_model(FAMILY, Weights(tmp_path / "best.pt"), Request("pets", size=size), tmp_path)
