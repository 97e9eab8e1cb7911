"""Tests the environment of tritonserver's process, and that a start ends early if it cannot
succeed."""

import sys
from pathlib import Path

import pytest

from serving.host import tritonserver
from serving.host.machine import Machine
from serving.pid1.processes import triton
from serving.settings.settings import Settings
from serving.triton.quirks import STUB_WAIT_VERSION

pytestmark = pytest.mark.unit

NVIDIAS = (
    "bin/tritonserver",
    "backends/python/libtriton_python.so",
    "backends/python/triton_python_backend_stub",
    "backends/tensorrt/libtriton_tensorrt.so",
    "backends/tensorflow/libtriton_tensorflow.so",
    "backends/vllm/model.py",
)


def test_give_the_stub_this_python_and_its_library() -> None:
    base = {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/opt/lib", "HOME": "/root"}
    variables = tritonserver.environment(base)
    assert variables["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
    assert variables["HOME"] == "/root"
    libraries = variables["LD_LIBRARY_PATH"].split(":")
    assert libraries[-1] == "/opt/lib"
    assert list(Path(libraries[0]).glob("libtritonserver*.so"))
    assert base["PATH"] == "/usr/bin"
    assert tritonserver.environment(variables) == variables


def nvidia_image(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Make tritonserver.py treat `folder` as NVIDIA's image of this version."""
    for name in NVIDIAS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "TRITON_VERSION").write_text(f"{version}\n")
    monkeypatch.setattr(tritonserver, "NVIDIA_IMAGE", folder)


def test_use_nvidia_s_server_with_the_gpu_s_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = tmp_path / "tritonserver"
    nvidia_image(layout, monkeypatch, "2.69.0")
    settings = Settings.from_env(
        {"SERVE_RUN_DIR": str(tmp_path)}, Machine(cpus=4.0, memory=2**34, gpu=True)
    )
    process = triton(settings, {"PATH": "/bin", "LD_LIBRARY_PATH": "/nvidia"})
    assert process.command[0] == str(layout / "bin/tritonserver")
    assert f"--backend-directory={layout}/backends" in process.command
    assert "--backend-config=tensorflow,version=2" in process.command
    shared = {word.split(",")[0] for word in process.command if "shm-region-prefix-name" in word}
    assert shared == {"--backend-config=python", "--backend-config=vllm"}
    assert (process.environment["PATH"], process.environment["LD_LIBRARY_PATH"]) == (
        "/bin",
        "/nvidia",
    )


def test_read_an_image_s_version_from_its_file_or_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_image(tmp_path, monkeypatch, "2.69.0")
    monkeypatch.setenv("TRITON_SERVER_VERSION", "2.68.0")
    assert tritonserver.version() == "2.69.0"
    (tmp_path / "TRITON_VERSION").unlink()
    assert tritonserver.version() == "2.68.0"


def test_wait_for_stubs_only_with_the_verified_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified = tritonserver.with_stub_wait({})["LD_PRELOAD"]
    assert verified == str(Path(sys.prefix) / "triton/stub_wait.so")
    nvidia_image(tmp_path / "same", monkeypatch, STUB_WAIT_VERSION)
    assert tritonserver.with_stub_wait({})["LD_PRELOAD"] == verified
    nvidia_image(tmp_path / "other", monkeypatch, "2.69.0")
    assert tritonserver.with_stub_wait({"A": "b"}) == {"A": "b"}


def test_name_the_missing_file_or_package() -> None:
    with pytest.raises(FileNotFoundError, match=r"libpython3\.99"):
        tritonserver.environment({}, python="3.99")
    with pytest.raises(FileNotFoundError, match="'nvidia-pytriton'"):
        tritonserver.package("no_such_package")
    with pytest.raises(FileNotFoundError, match=r"stub_wait\.so"):
        tritonserver.with_stub_wait({}, prefix="/nowhere")
