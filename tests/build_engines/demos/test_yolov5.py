"""The committed network that finds digits, its folder and its training."""

import filecmp
from itertools import islice
from pathlib import Path

import onnx
import pytest
import torch
from tritonclient.grpc.model_config_pb2 import DataType

from build_engines.building.model import build
from build_engines.demos.yolov5 import export
from build_engines.demos.yolov5_training import Windows, assign, ciou, collate, loss
from build_engines.errors import UsageError
from build_engines.families.yolov5_network import ANCHORS, STRIDES
from build_engines.request import Request
from serving.repository.model_config import read_merged
from tests.support.harness import ROOT

FOLDER = ROOT / "model_repository" / "yolov5"


def test_the_committed_network_gives_no_other_number_of_boxes() -> None:
    with pytest.raises(UsageError, match=r"--boxes .* need the network: build with --weights train"):
        export(Request("yolov5", boxes=0), Path("unused"))


def test_the_folder_is_complete_and_its_configs_agree_with_its_model() -> None:
    assert (FOLDER / "labels.txt").read_text().split() == list("0123456789")
    assert (FOLDER / "1" / "model.onnx").stat().st_size <= 8_000_000
    graph = onnx.load(FOLDER / "1" / "model.onnx").graph
    for file, kind in (("config.pbtxt", "KIND_GPU"), ("configs/cpu.pbtxt", "KIND_CPU")):
        parsed = read_merged(FOLDER, FOLDER / file)
        assert parsed.instance_group[0].kind == parsed.instance_group[0].Kind.Value(kind)
        assert parsed.max_batch_size == 8
        assert parsed.parameters["client"].string_value == "yolov5"
        for mine, theirs in ((parsed.input, graph.input), (parsed.output, graph.output)):
            shapes = [[d.dim_value for d in each.type.tensor_type.shape.dim][1:] for each in theirs]
            assert [(each.name, list(each.dims)) for each in mine] == [
                (each.name, shape) for each, shape in zip(theirs, shapes, strict=True)
            ]
        assert [each.data_type for each in (*parsed.input, *parsed.output)] == [DataType.TYPE_UINT8, DataType.TYPE_FP32]


def test_the_committed_folder_is_what_the_recipe_writes(tmp_path: Path) -> None:
    folder, _ = build(Request("yolov5", repository=tmp_path))
    names = ["config.pbtxt", "configs/cpu.pbtxt", "labels.txt", "example.jpg", "1/model.onnx"]
    assert filecmp.cmpfiles(FOLDER, folder, names, shallow=False)[0] == names


def test_windows_cut_digits_where_their_boxes_say() -> None:
    images, targets = collate(list(islice(Windows(0), 32)))
    assert images.shape == (32, 3, 320, 320)
    low, high = targets[:, 2:4] - targets[:, 4:] / 2, targets[:, 2:4] + targets[:, 4:] / 2
    assert len(targets) > 50
    assert (low >= -1e-3).all()
    assert (high <= 320.001).all()
    assert (targets[:, 4:] > 0).all()


def test_targets_go_to_anchors_within_a_ratio_of_four_and_to_the_nearest_cells() -> None:
    targets = torch.tensor([[1.0, 7.0, 100.0, 60.0, 20.0, 24.0]])  # cell (12, 7) at stride 8, offset (0.5, 0.5)
    indices, classes, boxes, cells = assign(targets, torch.tensor(ANCHORS[0]).float(), 8, 40, 40)
    spots = {tuple(row) for row in indices.tolist()}
    assert spots == {(1, anchor, *cell) for anchor in range(3) for cell in ((7, 12), (7, 13), (8, 12))}
    assert set(classes.tolist()) == {7}
    assert ((boxes[:, :2] >= -0.5) & (boxes[:, :2] <= 1.5)).all()
    assert (boxes[:, 2:] == torch.tensor([2.5, 3.0])).all()
    assert cells.shape == (9, 2)
    indices, *_ = assign(targets, torch.tensor(ANCHORS[2]).float(), 32, 10, 10)
    assert len(indices) == 0  # the smallest anchor there is 116×90


def test_ciou_is_one_for_equal_boxes_and_falls_with_distance() -> None:
    box = torch.tensor([[0.0, 0.0, 2.0, 2.0]])
    moved = torch.tensor([[1.0, 0.0, 2.0, 2.0]])
    assert float(ciou(box, box)) == pytest.approx(1, abs=1e-5)
    assert float(ciou(box, moved)) == pytest.approx(1 / 3 - 1 / 13, abs=1e-5)  # IoU 2/6, hull 3×2: 1/(9+4)


def test_the_loss_is_lowest_where_the_answer_is_right() -> None:
    targets = torch.tensor([[0.0, 3.0, 100.0, 60.0, 20.0, 24.0]])
    maps = [torch.full((1, 3, 320 // s, 320 // s, 15), -8.0) for s in STRIDES]
    for logits, stride, anchors in zip(maps, STRIDES, ANCHORS, strict=True):
        indices, _, boxes, cells = assign(targets, torch.tensor(anchors).float(), stride, *logits.shape[2:4])
        spots = tuple(indices.T)
        logits[(*spots, slice(0, 2))] = torch.logit((boxes[:, :2] + 0.5) / 2, 1e-6)
        logits[(*spots, slice(2, 4))] = torch.logit((boxes[:, 2:] / cells) ** 0.5 / 2, 1e-6)
        logits[(*spots, 4)] = logits[(*spots, 8)] = 8.0
    right = float(loss(maps, targets, 0.05))
    assert right < 0.02
    for column in (0, 2, 4, 8):
        wrong = [logits.clone() for logits in maps]
        for logits in wrong:
            logits[..., column] = -logits[..., column]
        assert float(loss(wrong, targets, 0.05)) > right + 0.005
