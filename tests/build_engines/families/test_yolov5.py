"""The YOLOv5 network, its export, and its stand-in with random weights."""

from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from build_engines.building.model import build
from build_engines.digits.held_out_pages import held_out_pages
from build_engines.digits.pages import letterboxed
from build_engines.errors import UsageError
from build_engines.families.yolov5 import side_of
from build_engines.families.yolov5_decoding import cells_of, decode, decode_free, with_anchors
from build_engines.families.yolov5_network import ANCHORS, YoloV5, YoloV5u
from build_engines.families.yolov5_random import network as random_network
from build_engines.families.yolov5_random import write_onnx
from build_engines.measurement.runners import runner_of
from build_engines.model_folder.stored import open_model
from build_engines.request import Request


@pytest.mark.parametrize(
    ("size", "parameters"),
    [("n", 1_867_405), ("s", 7_225_885), ("m", 21_172_173), ("l", 46_533_693), ("x", 86_705_005)],
)
def test_parameter_counts_are_those_published_for_the_fused_release(size: str, parameters: int) -> None:
    network = YoloV5(size, classes=80).fuse()
    assert sum(each.numel() for each in network.parameters()) == parameters


@pytest.mark.parametrize(("size", "millions"), [("n", 2.6), ("s", 9.1), ("m", 25.1), ("l", 53.2), ("x", 97.2)])
def test_parameter_counts_of_the_anchor_free_sizes_are_those_published(size: str, millions: float) -> None:
    with torch.device("meta"):
        network = YoloV5u(size, classes=80)
    assert abs(sum(each.numel() for each in network.parameters()) / 1e6 - millions) < 0.1


def test_anchor_free_decoding_follows_the_papers_formula() -> None:
    """All weight on one bin: distances of 1, 2, 3 and 4 cells left of, above, right of and below the cell's middle."""
    bins, scores = torch.full((1, 64, 8), -100.0), torch.zeros(1, 3, 8)
    for side, distance in enumerate((1, 2, 3, 4)):
        bins[0, 16 * side + distance, 7] = 100.0
    table = decode_free(bins, scores, cells_of([(2, 4)], [8])[0])
    assert table.shape == (1, 7, 8)
    x1, y1, x2, y2 = 3.5 - 1, 1.5 - 2, 3.5 + 3, 1.5 + 4  # cell (3, 1)
    expected = [8 * (x1 + x2) / 2, 8 * (y1 + y2) / 2, 8 * (x2 - x1), 8 * (y2 - y1), 0.5, 0.5, 0.5]
    assert table[0, :, 7].tolist() == pytest.approx(expected)


def test_decoding_follows_the_published_formula() -> None:
    cells = with_anchors(cells_of([(2, 4)], [8])[0], ANCHORS[0])
    logits = torch.zeros(1, 24, 7)  # sigmoid 0.5: xy = (0.5 + cell) · stride, wh = anchor
    rows = decode(logits, cells)
    assert rows.shape == (1, 24, 7)
    row = 1 * 8 + 1 * 4 + 3  # second anchor, cell (3, 1)
    assert rows[0, row].tolist() == [28, 12, 16, 30, 0.5, 0.5, 0.5]
    logits[0, row, :4] = torch.tensor([100.0, -100.0, 100.0, -100.0])  # the ends: 2, 0 and 4, 0
    assert decode(logits, cells)[0, row, :4].tolist() == [36, 4, 64, 0]


def pixels_of(count: int, side: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)


@pytest.fixture(params=[YoloV5, YoloV5u])
def lively(request: pytest.FixtureRequest) -> YoloV5 | YoloV5u:
    """A random network whose layers do not fade to a constant."""
    torch.manual_seed(0)
    network: YoloV5 | YoloV5u = request.param("n", classes=10)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # plain average
    network.train()(torch.rand(4, 3, 160, 160))
    network.eval()
    return network


def rows_of(table: torch.Tensor) -> torch.Tensor:
    """[N,M,5+10] as it is, [N,4+10,M] as [N,M,4+10]."""
    return table if table.shape[2] == 15 else table.transpose(1, 2)


def test_the_exported_model_equals_the_network_at_any_batch_size(lively: YoloV5 | YoloV5u, tmp_path: Path) -> None:
    pixels = pixels_of(3, 320)
    with torch.no_grad():
        expected = rows_of(lively.decoded(pixels / 255))
    write_onnx(lively, 320, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    for count in (1, 3):
        (output,) = session.run(["output0"], {"images": pixels[:count].numpy()})
        torch.testing.assert_close(rows_of(torch.from_numpy(output)), expected[:count], rtol=1e-3, atol=1e-2)


def test_the_boxes_that_leave_the_exported_model_are_the_networks_best(
    lively: YoloV5 | YoloV5u, tmp_path: Path
) -> None:
    pixels = pixels_of(3, 320)
    with torch.no_grad():
        every = rows_of(lively.decoded(pixels / 255))
    write_onnx(lively, 320, tmp_path / "model.onnx", 50)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    for count in (1, 3):
        (output,) = session.run(["output0"], {"images": pixels[:count].numpy()})
        for some, each in zip(rows_of(torch.from_numpy(output)), every, strict=False):
            merits = [t[:, 4] if isinstance(lively, YoloV5) else t[:, 4:].amax(1) for t in (some, each)]
            torch.testing.assert_close(merits[0].sort().values, merits[1].sort().values[-50:], rtol=1e-3, atol=1e-3)
            near = torch.cdist(some.double(), each.double()).min(1)
            assert float(near.values.max()) < 0.5  # pixels
            assert len(near.indices.unique()) == 50


def test_more_boxes_than_there_are_is_all_of_them(tmp_path: Path) -> None:
    request = Request("yolov5nu", "random", size=64, boxes=500, repository=tmp_path)
    build(request)
    stored = open_model("yolov5nu", tmp_path)
    assert stored.model.outputs[0].shape == (84, 84)
    assert stored.model.parameters["layout"] == "yolov5u"


def test_a_fixed_batch_and_another_size_are_the_clients_too(tmp_path: Path) -> None:
    request = Request("yolov5nu", "random", max_batch_size=0, size=64, repository=tmp_path)
    folder, _ = build(request)
    stored = open_model("yolov5nu", tmp_path)
    assert stored.model.max_batch_size == 0
    assert [stored.model.inputs[0].shape, stored.model.outputs[0].shape] == [(1, 3, 64, 64), (1, 84, 84)]
    client = stored.client()
    assert client
    inputs = client.preprocess([Image.open(folder / "example.jpg")])
    outputs = {name: array[0] for name, array in runner_of(stored)({"images": inputs["images"][0]}).items()}
    assert outputs["output0"].shape == (84, 84)


@pytest.mark.parametrize("size", [0, 300, 31])
def test_a_size_that_no_stride_divides_is_refused(size: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="multiple of 32") if size else nullcontext():
        side_of(Request("yolov5n", size=size))


def test_the_stand_in_lets_a_few_boxes_of_each_page_pass_on_average() -> None:
    network = random_network("n", 80).eval()
    pages = [letterboxed(page)[0].transpose(2, 0, 1) for page in islice(held_out_pages(1), 6)]
    with torch.no_grad():
        rows = network.decoded(torch.from_numpy(np.stack(pages)).float() / 255)
    passing = (rows[..., 4] * rows[..., 5:].amax(-1) > 0.25).sum() / len(pages)
    assert 1 < passing < 2000
