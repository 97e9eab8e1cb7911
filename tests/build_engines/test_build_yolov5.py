"""The YOLOv5 network, its export, its training targets, the pages, and the folder that is committed."""

import filecmp
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from google.protobuf import text_format
from PIL import Image
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from build_engines.building import build
from build_engines.digit_pages import LARGEST, LETTERBOX, SMALLEST, Page, training_pages
from build_engines.digits import split
from build_engines.draft import UsageError
from build_engines.held_out_pages import held_out_pages
from build_engines.recipes import Request
from build_engines.repository_models import open_model
from build_engines.yolov5 import committed, side_of
from build_engines.yolov5_decoding import cells_of, decode, decode_free, with_anchors
from build_engines.yolov5_network import ANCHORS, STRIDES, YoloV5, YoloV5u
from build_engines.yolov5_random import network as random_network
from build_engines.yolov5_random import write_onnx
from build_engines.yolov5_training import Windows, assign, ciou, collate, letterboxed, loss

FOLDER = Path(__file__).resolve().parents[2] / "model_repository" / "yolov5"
GENERATORS = [training_pages, held_out_pages]
Generator = Callable[[int], Iterator[Page]]


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


def test_the_committed_network_gives_no_other_number_of_boxes() -> None:
    with pytest.raises(UsageError, match=r"--boxes .* need the network: build with --weights train"):
        committed(Request("yolov5", boxes=0), Path("unused"))


def test_a_fixed_batch_and_another_size_are_the_clients_too(tmp_path: Path) -> None:
    request = Request("yolov5nu", "random", max_batch_size=0, size=64, repository=tmp_path)
    folder, _ = build(request)
    stored = open_model("yolov5nu", tmp_path)
    assert stored.model.max_batch_size == 0
    assert [stored.model.inputs[0].shape, stored.model.outputs[0].shape] == [(1, 3, 64, 64), (1, 84, 84)]
    client = stored.client()
    assert client
    inputs = client.preprocess([Image.open(folder / "example.jpg")])
    outputs = {name: array[0] for name, array in stored.runner()({"images": inputs["images"][0]}).items()}
    assert outputs["output0"].shape == (84, 84)


@pytest.mark.parametrize("size", [0, 300, 31])
def test_a_size_that_no_stride_divides_is_refused(size: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="multiple of 32") if size else nullcontext():
        side_of(Request("yolov5n", size=size))


def test_the_folder_is_complete_and_its_configs_agree_with_its_model() -> None:
    assert (FOLDER / "labels.txt").read_text().split() == list("0123456789")
    assert (FOLDER / "1" / "model.onnx").stat().st_size <= 8_000_000
    graph = onnx.load(FOLDER / "1" / "model.onnx").graph
    for file, kind in (("config.pbtxt", "KIND_GPU"), ("configs/cpu.pbtxt", "KIND_CPU")):
        parsed = text_format.Parse((FOLDER / file).read_text(), ModelConfig())
        assert parsed.instance_group[0].kind == parsed.instance_group[0].Kind.Value(kind)
        assert parsed.max_batch_size == 8
        assert parsed.parameters["client"].string_value == "yolov5"
        for mine, theirs in ((parsed.input, graph.input), (parsed.output, graph.output)):
            shapes = [[d.dim_value for d in each.type.tensor_type.shape.dim][1:] for each in theirs]
            assert [(each.name, list(each.dims)) for each in mine] == [
                (each.name, shape) for each, shape in zip(theirs, shapes, strict=True)
            ]
        assert [each.data_type for each in (*parsed.input, *parsed.output)] == [DataType.TYPE_UINT8, DataType.TYPE_FP32]


def test_the_stand_in_lets_a_few_boxes_of_each_page_pass_on_average() -> None:
    network = random_network("n", 80).eval()
    pages = [letterboxed(page)[0].transpose(2, 0, 1) for page in islice(held_out_pages(1), 6)]
    with torch.no_grad():
        rows = network.decoded(torch.from_numpy(np.stack(pages)).float() / 255)
    passing = (rows[..., 4] * rows[..., 5:].amax(-1) > 0.25).sum() / len(pages)
    assert 1 < passing < 2000


def test_the_committed_folder_is_what_the_recipe_writes(tmp_path: Path) -> None:
    folder, _ = build(Request("yolov5", repository=tmp_path))
    names = ["config.pbtxt", "configs/cpu.pbtxt", "labels.txt", "example.jpg", "1/model.onnx"]
    assert filecmp.cmpfiles(FOLDER, folder, names, shallow=False)[0] == names


@pytest.mark.parametrize("pages", GENERATORS)
def test_pages_are_the_same_for_the_same_seed_and_others_for_another(pages: Generator) -> None:
    first, again, other = (next(pages(seed)) for seed in (3, 3, 4))
    assert first.image.tobytes() == again.image.tobytes()
    assert first.boxes.tolist() == again.boxes.tolist()
    assert first.image.tobytes() != other.image.tobytes()


@pytest.mark.parametrize("pages", GENERATORS)
def test_digits_have_the_sizes_promised_and_lie_on_the_page(pages: Generator) -> None:
    sizes = []
    for image, boxes, labels in islice(pages(0), 25):
        assert image.mode == "RGB"
        assert boxes.shape == (len(labels), 4)
        assert ((boxes >= 0) & (boxes <= np.array([*image.size] * 2))).all()
        sizes += ((boxes[:, 2:] - boxes[:, :2]).max(1, initial=0) * LETTERBOX / max(image.size)).tolist()
        assert set(labels) <= set(range(10))
    assert len(sizes) > 200
    assert min(sizes) > SMALLEST * 0.85
    assert max(sizes) < LARGEST * 1.15
    assert min(sizes) < 20
    assert max(sizes) > 90


def test_the_two_generators_share_no_digit() -> None:
    training, held_out = ({image.tobytes() for image in images} for images, _ in split())
    assert not training & held_out


def test_boxes_enclose_the_ink_tightly() -> None:
    """On pages that are light and calm around the digit, found from the pixels alone."""
    checked = 0
    for image, boxes, _ in islice(held_out_pages(1), 40):
        grey = np.asarray(image.convert("L"), float)
        for x1, y1, x2, y2 in boxes.astype(int):
            margin = grey[max(y1 - 3, 0) : y2 + 3, max(x1 - 3, 0) : x2 + 3]
            frame = np.concatenate((margin[0], margin[-1], margin[:, 0], margin[:, -1]))
            if frame.std() > 1.5 or max(x2 - x1, y2 - y1) < 30 or min(x1, y1) < 3:
                continue
            ink = np.abs(margin - frame.mean()) > 0.4 * np.abs(margin - frame.mean()).max()
            found = [np.where(ink.any(axis))[0] for axis in (0, 1)]
            edges = [found[0][0], found[1][0], found[0][-1] + 1, found[1][-1] + 1]
            np.testing.assert_allclose(edges, [3, 3, x2 - x1 + 3, y2 - y1 + 3], atol=2.5)
            checked += 1
    assert checked > 10


def test_windows_cut_digits_where_their_boxes_say() -> None:
    images, targets = collate(list(islice(Windows(0), 32)))
    assert images.shape == (32, 3, 320, 320)
    low, high = targets[:, 2:4] - targets[:, 4:] / 2, targets[:, 2:4] + targets[:, 4:] / 2
    assert len(targets) > 50
    assert (low >= -1e-3).all()
    assert (high <= 320.001).all()
    assert (targets[:, 4:] > 0).all()


def test_letterboxed_pages_keep_their_digits() -> None:
    page = next(training_pages(0))
    pixels, boxes = letterboxed(page)
    assert pixels.shape == (640, 640, 3)
    x1, y1, x2, y2 = boxes[0].round().astype(int)
    crop = Image.fromarray(pixels[y1:y2, x1:x2])
    original = page.image.crop(tuple(page.boxes[0].astype(int).tolist())).resize(crop.size)
    assert np.abs(np.asarray(crop, float) - np.asarray(original, float)).mean() < 12


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
