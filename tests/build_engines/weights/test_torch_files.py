"""The reader of torch.save's files. Some here would run code, or read memory that is not theirs, on purpose."""

import collections
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from build_engines.errors import BuildError
from build_engines.weights.torch_files import Placeholder, load, tensors_of

pytestmark = pytest.mark.full


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
    with pytest.raises(BuildError):
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
    with pytest.raises(BuildError):
        load(tmp_path / "old.pt")
