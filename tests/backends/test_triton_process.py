"""The environment of tritonserver's process, and the end of a start that cannot work."""

import sys
from pathlib import Path

import pytest

from serving.host import tritonserver

pytestmark = pytest.mark.unit


def test_the_environment_gives_the_stub_this_python_and_its_library() -> None:
    base = {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/opt/lib", "HOME": "/root"}
    made = tritonserver.environment(base)
    assert made["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
    assert made["HOME"] == "/root"
    libraries = made["LD_LIBRARY_PATH"].split(":")
    assert libraries[-1] == "/opt/lib"
    assert list(Path(libraries[0]).glob("libtritonserver*.so"))
    assert base["PATH"] == "/usr/bin"
    assert tritonserver.environment(made) == made


def test_the_server_of_nvidias_image_is_taken_and_its_environment_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tritonserver").touch()
    monkeypatch.setattr(tritonserver, "NVIDIA_IMAGE", tmp_path)
    assert tritonserver.binary() == tmp_path / "bin" / "tritonserver"
    assert tritonserver.backend_directory() == tmp_path / "backends"
    assert tritonserver.environment({"PATH": "/bin"}) == {"PATH": "/bin"}


def nvidia_image(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Make tritonserver.py take `folder` for NVIDIA's image of this version."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/tritonserver").touch()
    (folder / "TRITON_VERSION").write_text(f"{version}\n")
    monkeypatch.setattr(tritonserver, "NVIDIA_IMAGE", folder)


def test_an_image_s_version_is_in_its_file_else_in_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_image(tmp_path, monkeypatch, "2.69.0")
    monkeypatch.setenv("TRITON_SERVER_VERSION", "2.68.0")
    assert tritonserver.version() == "2.69.0"
    (tmp_path / "TRITON_VERSION").unlink()
    assert tritonserver.version() == "2.68.0"


def test_only_the_verified_version_waits_for_stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verified = tritonserver.with_stub_wait({})["LD_PRELOAD"]
    assert verified == str(Path(sys.prefix) / "triton/stub_wait.so")
    nvidia_image(tmp_path / "same", monkeypatch, tritonserver.STUB_WAIT_VERSION)
    assert tritonserver.with_stub_wait({})["LD_PRELOAD"] == verified
    nvidia_image(tmp_path / "other", monkeypatch, "2.69.0")
    assert tritonserver.with_stub_wait({"A": "b"}) == {"A": "b"}


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tritonserver, "PYTHON", "3.99")
    with pytest.raises(FileNotFoundError, match=r"libpython3\.99"):
        tritonserver.environment({})
    monkeypatch.setattr(tritonserver, "PACKAGE", "no_such_package")
    with pytest.raises(FileNotFoundError, match="'nvidia-pytriton'"):
        tritonserver.binary()
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    monkeypatch.setattr(tritonserver, "version", lambda: tritonserver.STUB_WAIT_VERSION)
    with pytest.raises(FileNotFoundError, match=r"stub_wait\.so"):
        tritonserver.with_stub_wait({})
