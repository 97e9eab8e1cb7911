"""Tests the installation of Triton's backends, from the real package into temporary folders."""

import os
import shutil
from pathlib import Path

import pytest

from backends.install import OURS, STUB, install, main, own_backends

pytestmark = pytest.mark.unit

PYTHON = {"libtriton_python.so", "triton_python_backend_utils.py", STUB}


def files(folder: Path) -> dict[str, int]:
    """Return the mode of each file."""
    return {str(p.relative_to(folder)): p.stat().st_mode for p in folder.rglob("*") if p.is_file()}


def test_install_the_python_backend_and_ours_as_copies(tmp_path: Path) -> None:
    assert install(tmp_path / "new" / "backends") == ["python", *own_backends()]
    folder = tmp_path / "new" / "backends"
    assert {path.name for path in (folder / "python").iterdir()} == PYTHON
    assert (folder / "onnxruntime" / "model.py").is_file()
    shared = {path.name for path in (OURS / "_shared").glob("*.py")}
    assert all(
        shared <= {path.name for path in (folder / name).iterdir()} for name in own_backends()
    )
    assert os.access(folder / "python" / STUB, os.X_OK)
    assert not [
        path for path in folder.rglob("*") if path.is_symlink() or path.name == "__pycache__"
    ]
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("damage", ["none", "added", "link", "mode", "folder", "dangling"])
def test_replace_a_backend_and_keep_others(tmp_path: Path, damage: str) -> None:
    install(tmp_path)
    (tmp_path / "tensorrt").mkdir()  # a backend that this project did not install
    (tmp_path / "tensorrt" / "libtriton_tensorrt.so").touch()
    before = files(tmp_path)
    model = tmp_path / "onnxruntime" / "model.py"
    if damage == "link":
        model.unlink()
        model.symlink_to(OURS / "onnxruntime/model.py")
    elif damage == "added":
        model.with_name("left_over.py").touch()
    elif damage == "mode":
        model.chmod(0o600)
    elif damage in {"folder", "dangling"}:
        shutil.rmtree(model.parent)
        target = OURS / "onnxruntime" if damage == "folder" else tmp_path / "nowhere"
        model.parent.symlink_to(target)
    install(tmp_path)
    assert files(tmp_path) == before
    assert (OURS / "onnxruntime/model.py").is_file()
    assert not model.is_symlink() and not model.parent.is_symlink()


def test_name_a_python_without_a_stub_and_the_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"3\.99"):
        install(tmp_path, python="3.99")


def test_report_what_the_command_did_or_why_it_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert main([str(tmp_path / "backends")]) == 0
    assert main([str(tmp_path / "backends")]) == 0
    (tmp_path / "file").touch()
    assert main([str(tmp_path / "file")]) == 1
    assert len(caplog.records) == 3
