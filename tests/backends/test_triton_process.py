"""What tritonserver's process needs, and how a start that cannot work ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from serving.host import tritonserver
from tests.backends.onnx_models import ONE, PLATFORM, REFUSED, write_model
from tests.backends.triton_process import start


def test_the_package_is_found_without_being_imported() -> None:
    code = "import sys; from serving.host import tritonserver; print(tritonserver.binary(), 'pytriton' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    path, imported = run.stdout.split()
    assert os.access(path, os.X_OK)
    assert imported == "False"


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


def test_a_missing_library_is_named_with_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"preload\.so is missing.*backends/\*\.c"):
        tritonserver.preloaded({})


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tritonserver, "PACKAGE", "no_such_package")
    with pytest.raises(FileNotFoundError, match="'nvidia-pytriton' is not installed"):
        tritonserver.binary()


def test_a_missing_python_library_is_named_with_its_debian_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tritonserver, "PYTHON", "3.99")
    with pytest.raises(FileNotFoundError, match=r"install Debian's package libpython3\.99"):
        tritonserver.environment({})


def test_a_model_that_does_not_load_ends_the_server_with_its_reason(tmp_path: Path, backends: Path) -> None:
    file, text = REFUSED["bad_shape"]
    write_model(tmp_path / "models" / "bad_shape", file, PLATFORM + ONE + text)
    server = start(tmp_path / "models", backends, tmp_path / "log", ["--exit-on-error=true"])
    try:
        assert server.wait_for_exit() in (1, -signal.SIGABRT)  # 24.10 itself may abort where it ends on a busy machine
    finally:
        server.stop()
    assert "failed to load 'bad_shape' version 1: Internal: ValueError: model 'bad_shape'" in server.text()
