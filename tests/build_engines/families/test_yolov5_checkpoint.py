# mypy: allow-subclassing-any
"""Official YOLOv5 checkpoints, by a stand-in for the release: its layers numbered and named as it publishes them.

The release's packages are AGPL and not used here; what is published of its structure is written down again in
`Release`, as a list of layers that is walked, unlike our own network. Files that would run code are made on purpose.
"""

import collections
import pickle
import struct
import sys
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from build_engines.building.model import build
from build_engines.errors import BuildError
from build_engines.families.yolov5_checkpoint import read
from build_engines.families.yolov5_network import YoloV5, YoloV5u
from build_engines.model_folder.stored import open_model
from build_engines.request import Request
from build_engines.weights.torch_files import Placeholder, load, tensors_of

MODULE = "models_of_the_release"  # importable while a checkpoint is written, not when it is read
ANCHORS = [[[8, 9], [20, 11], [21, 40]], [[50, 51], [52, 110], [130, 70]], [[140, 150], [260, 200], [380, 390]]]


class Conv(nn.Module):
    def __init__(self, c1: int, c2: int, k: int = 1, s: int = 1, p: int | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, k // 2 if p is None else p, bias=False)
        self.bn = nn.BatchNorm2d(c2, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, c: int, shortcut: bool) -> None:
        super().__init__()
        self.cv1, self.cv2, self.shortcut = Conv(c, c), Conv(c, c, 3), shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.cv2(self.cv1(x)) + (x if self.shortcut else 0)


class C3(nn.Module):
    def __init__(self, c1: int, c2: int, n: int, shortcut: bool = True) -> None:
        super().__init__()
        self.cv1, self.cv2, self.cv3 = Conv(c1, c2 // 2), Conv(c1, c2 // 2), Conv(c2, c2)
        self.m = nn.Sequential(*[Bottleneck(c2 // 2, shortcut) for _ in range(n)])

    def forward(self, x: Tensor) -> Tensor:
        return self.cv3(torch.cat([self.m(self.cv1(x)), self.cv2(x)], 1))


class SPPF(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(c, c // 2), Conv(c * 2, c)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cv1(x)
        return self.cv2(torch.cat([x, *(functional.max_pool2d(x, k, 1, k // 2) for k in (5, 9, 13))], 1))


class Up(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2.0)


class Join(nn.Module):
    def __init__(self, other: int) -> None:
        super().__init__()
        self.other = other


class Detect(nn.Module):
    """Decodes cell by cell, in loops."""

    def __init__(self, classes: int, channels: list[int]) -> None:
        super().__init__()
        self.m = nn.ModuleList(nn.Conv2d(c, 3 * (5 + classes), 1) for c in channels)
        strides = torch.tensor([8.0, 16.0, 32.0])
        self.register_buffer("anchors", torch.tensor(ANCHORS).float() / strides.view(3, 1, 1))

    def forward(self, maps: list[Tensor]) -> Tensor:
        rows = []
        for head, x, anchors, stride in zip(self.m, maps, self.anchors, (8, 16, 32), strict=True):
            y = head(x).sigmoid()
            n, _, height, width = y.shape
            for a in range(3):
                part = y[:, a * y.shape[1] // 3 : (a + 1) * y.shape[1] // 3]
                for j in range(height):
                    for i in range(width):
                        v = part[:, :, j, i]
                        xy = (v[:, :2] * 2 - 0.5 + torch.tensor([i, j])) * stride
                        wh = (v[:, 2:4] * 2) ** 2 * anchors[a] * stride
                        rows.append(torch.cat([xy, wh, v[:, 4:]], 1).view(n, 1, -1))
        return torch.cat(rows, 1)


class DFL(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 1, 1, bias=False)
        self.conv.weight.data = torch.arange(16.0).view(1, 16, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, _, cells = x.shape
        return self.conv(x.view(n, 4, 16, cells).transpose(2, 1).softmax(1)).view(n, 4, cells)


class DetectU(nn.Module):
    def __init__(self, classes: int, channels: list[int]) -> None:
        super().__init__()
        c2, c3 = max(16, channels[0] // 4, 64), max(channels[0], min(classes, 100))
        self.cv2 = nn.ModuleList(nn.Sequential(Conv(c, c2, 3), Conv(c2, c2, 3), nn.Conv2d(c2, 64, 1)) for c in channels)
        self.cv3 = nn.ModuleList(
            nn.Sequential(Conv(c, c3, 3), Conv(c3, c3, 3), nn.Conv2d(c3, classes, 1)) for c in channels
        )
        self.dfl = DFL()

    def forward(self, maps: list[Tensor]) -> Tensor:
        tables = []
        for box, score, x, stride in zip(self.cv2, self.cv3, maps, (8, 16, 32), strict=True):
            sides = self.dfl(box(x).flatten(2)) * stride
            cells = [((i + 0.5) * stride, (j + 0.5) * stride) for j in range(x.shape[2]) for i in range(x.shape[3])]
            middle = torch.tensor(cells).T
            low, high = middle - sides[:, :2], middle + sides[:, 2:]
            tables.append(torch.cat([(low + high) / 2, high - low, score(x).flatten(2).sigmoid()], 1))
        return torch.cat(tables, 2)


class Release(nn.Module):
    """Size n. `model` is numbered as the release's; a layer takes what the one before gives."""

    def __init__(self, classes: int, anchor_free: bool) -> None:
        super().__init__()
        head = DetectU if anchor_free else Detect
        self.model = nn.Sequential(
            Conv(3, 16, 6, 2, 2),
            Conv(16, 32, 3, 2),
            C3(32, 32, 1),
            Conv(32, 64, 3, 2),
            C3(64, 64, 2),
            Conv(64, 128, 3, 2),
            C3(128, 128, 3),
            Conv(128, 256, 3, 2),
            C3(256, 256, 1),
            SPPF(256),
            Conv(256, 128),
            Up(),
            Join(6),
            C3(256, 128, 1, False),
            Conv(128, 64),
            Up(),
            Join(4),
            C3(128, 64, 1, False),
            Conv(64, 64, 3, 2),
            Join(14),
            C3(128, 128, 1, False),
            Conv(128, 128, 3, 2),
            Join(10),
            C3(256, 256, 1, False),
            head(classes, [64, 128, 256]),
        )
        self.names: Any = [f"thing {number}" for number in range(classes)]

    def forward(self, x: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for layer in self.model:
            if isinstance(layer, Join):
                x = torch.cat([x, outputs[layer.other]], 1)
            elif isinstance(layer, Detect | DetectU):
                x = layer([outputs[17], outputs[20], outputs[23]])
            else:
                x = layer(x)
            outputs.append(x)
        return x


@pytest.fixture
def importable() -> Iterator[types.ModuleType]:
    """A module that has the stand-in's classes, as the release's has them: a checkpoint names them by it."""
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    classes = [Conv, Bottleneck, C3, SPPF, Up, Join, Detect, DetectU, DFL, Release]
    homes = {each: each.__module__ for each in classes}
    for each in classes:
        setattr(module, each.__name__, each)
        each.__module__ = MODULE
    yield module
    for each, home in homes.items():
        each.__module__ = home
    sys.modules.pop(MODULE, None)


def random_release(classes: int, anchor_free: bool) -> Release:
    """Its norms and biases are random too."""
    torch.manual_seed(0)
    model = Release(classes, anchor_free)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                module.weight.uniform_(0.8, 1.2)
                module.bias.normal_(0, 0.1)
    model.eval()
    return model


def save(release: Release, path: Path, **changes: Any) -> Path:
    """As the release saves: half precision, the model or its moving average in a dictionary."""
    torch.save({"epoch": -1, "ema": None, "model": release.half(), "optimizer": None, "date": "2022"} | changes, path)
    release.float()
    sys.modules.pop(MODULE)
    return path


@pytest.mark.parametrize("anchor_free", [False, True])
def test_a_checkpoint_answers_as_the_release_does(anchor_free: bool, importable: Any, tmp_path: Path) -> None:
    model = random_release(7, anchor_free)
    network, names = read(save(model, tmp_path / "best.pt"))
    images = torch.rand(2, 3, 64, 96)
    with torch.inference_mode():
        ours, theirs = network.eval().decoded(images), model(images)
    assert ours.shape == ((2, 3 * (96 + 24 + 6), 12) if not anchor_free else (2, 11, 126))
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-4)
    assert names == tuple(f"thing {number}" for number in range(7))
    assert type(network) is (YoloV5u if anchor_free else YoloV5)


def test_the_moving_average_goes_first(importable: Any, tmp_path: Path) -> None:
    model, other = random_release(2, False), random_release(2, False)
    with torch.no_grad():
        other.model[0].conv.weight.zero_()
    network, _ = read(save(model, tmp_path / "best.pt", ema=other.half()))
    assert network.state_dict()["backbone.to8.0.conv.weight"].abs().max() == 0


def test_a_checkpoint_becomes_a_model_folder_with_its_labels(importable: Any, tmp_path: Path) -> None:
    model = random_release(3, True)
    model.names = {0: "cat", 1: "dog", 2: "fox"}
    path = save(model, tmp_path / "best.pt")
    request = Request("pets", str(path), client="yolov5", size=64, repository=tmp_path / "models")
    folder, made = build(request)
    assert made
    assert (folder / "labels.txt").read_text() == "cat\ndog\nfox\n"
    assert open_model("pets", tmp_path / "models").model.outputs[0].shape == (7, 84)
    assert build(request) == (folder, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "holds no model under 'ema' or 'model'"),
        ({"model": nn.Linear(2, 2)}, "no tensor 'model.0.conv.weight'"),
    ],
)
def test_another_checkpoint_is_refused(change: dict[str, Any], message: str, importable: Any, tmp_path: Path) -> None:
    path = save(random_release(2, False), tmp_path / "best.pt", **change)
    with pytest.raises(BuildError, match=message):
        read(path)


def test_a_structure_that_does_not_fit_is_refused(importable: Any, tmp_path: Path) -> None:
    model = random_release(2, False)
    model.model[2] = C3(32, 32, 4)
    with pytest.raises(
        BuildError, match=r"does not fit YOLOv5's published structure.*yolo export model=best\.pt format=onnx"
    ):
        read(save(model, tmp_path / "best.pt"))


def test_nothing_of_the_checkpoint_is_imported(importable: Any, tmp_path: Path) -> None:
    path = save(random_release(2, False), tmp_path / "best.pt")
    assert MODULE not in sys.modules
    root = load(path)
    assert isinstance(root["model"], Placeholder)
    assert MODULE not in sys.modules


# --- files that would run code, or read memory that is not theirs ---


class Bomb:
    """Unpickled by pickle itself, it makes the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def zipped(path: Path, content: bytes, **storages: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        for key, data in storages.items():
            archive.writestr(f"archive/data/{key}", data)
    return path


def test_code_in_a_checkpoint_does_not_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    content = pickle.dumps({"model": Bomb(made)}, 2)
    pickle.loads(content)["model"].close()
    assert made.exists()  # so it would
    made.unlink()
    found = load(zipped(tmp_path / "bomb.pt", content))
    assert isinstance(found["model"], Placeholder)
    assert not made.exists()


@pytest.mark.parametrize("call", ["os.system", "builtins.eval", "builtins.exec", "builtins.getattr", "subprocess.run"])
def test_every_callable_is_a_placeholder(call: str, tmp_path: Path) -> None:
    module, name = call.rsplit(".", 1)
    content = b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"X\x04\x00\x00\x00true\x85R."
    assert isinstance(load(zipped(tmp_path / "call.pt", content)), Placeholder)


class _Storage:
    pass


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return ("storage", torch.FloatStorage, "0", "cpu", 4) if isinstance(value, _Storage) else None


class Rebuilt:
    """A tensor as torch.save describes it, with any bounds."""

    def __init__(self, *bounds: Any) -> None:
        self.bounds = bounds

    def __reduce__(self) -> Any:
        return torch._utils._rebuild_tensor_v2, (_Storage(), *self.bounds, False, collections.OrderedDict())


def tensor_file(path: Path, *bounds: Any) -> Path:
    pickled = path.with_suffix(".pkl")
    with pickled.open("wb") as file:
        _Pickler(file, 2).dump(Rebuilt(*bounds))
    return zipped(path, pickled.read_bytes(), **{"0": struct.pack("<4f", 1, 2, 3, 4)})


def test_a_tensor_within_its_storage_is_read(tmp_path: Path) -> None:
    np.testing.assert_array_equal(load(tensor_file(tmp_path / "t.pt", 0, (2, 2), (1, 2))), [[1, 3], [2, 4]])
    np.testing.assert_array_equal(load(tensor_file(tmp_path / "u.pt", 3, (1,), (1,))), [4])


@pytest.mark.parametrize(
    "bounds",
    [(0, (5,), (1,)), (1, (4,), (1,)), (0, (2, 2), (1, 3)), (-1, (2,), (1,)), (3, (2,), (-1,)), (0, (-2,), (1,))],
)
def test_a_tensor_beyond_its_storage_is_refused(bounds: Any, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="goes beyond its storage"):
        load(tensor_file(tmp_path / "t.pt", *bounds))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool]
)
def test_every_datatype_and_view_is_read_as_torch_reads_it(dtype: torch.dtype, tmp_path: Path) -> None:
    values = (torch.arange(24).reshape(4, 6) - 7).to(dtype)
    saved = {"whole": values, "view": values.T[1:5:2], "scalar": values[1, 2], "none": values[:0]}
    torch.save(saved, tmp_path / "t.pt")
    found = load(tmp_path / "t.pt")
    for name, tensor in saved.items():
        expected = tensor.float().numpy() if dtype == torch.bfloat16 else tensor.numpy()
        np.testing.assert_array_equal(found[name], expected)


def test_names_of_tensors_are_those_of_state_dict(tmp_path: Path) -> None:
    module = nn.Sequential(collections.OrderedDict(a=nn.Conv2d(1, 2, 3), b=nn.BatchNorm2d(2)))
    torch.save(module, tmp_path / "m.pt")
    found = dict(tensors_of(load(tmp_path / "m.pt")))
    assert sorted(found) == sorted(module.state_dict())


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x02", b"\x80\x02cos\n", b"\x80\x02(lp0\n."])
def test_a_broken_pickle_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = zipped(tmp_path / "broken.pt", content)
    try:
        load(path)
    except BuildError as err:
        assert "\n" not in str(err)


def test_a_file_that_is_no_zip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.pt").write_bytes(pickle.dumps({"model": 1}))
    with pytest.raises(BuildError, match=r"torch 1\.6"):
        load(tmp_path / "old.pt")
