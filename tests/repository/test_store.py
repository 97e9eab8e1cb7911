"""What Triton gets of a model folder, and how a change of one is seen."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.host.tritonserver import backend_directory
from serving.repository import store as store_module
from serving.repository.model_config import read_config, read_file
from serving.repository.store import Store, copy, signature
from serving.settings.table import Settings
from tests.repository.test_model_config import ONNX, X, Y, write
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

RESNET = ROOT / "model_repository/resnet"


def store(folder: Path, **variables: str) -> Store:
    return Store(folder / "staged", Settings.from_env({"SERVE_DEVICE": "cpu"} | variables), backend_directory())


@pytest.mark.parametrize(
    ("engine", "backend"), [("openvino", ("", "openvino")), ("onnxruntime", ("onnxruntime_onnx", ""))]
)
def test_a_model_is_shown_with_the_engine_for_this_machine(
    engine: str, backend: tuple[str, str], tmp_path: Path
) -> None:
    made = store(tmp_path, SERVE_CPU_ENGINE=engine)
    choice = made.stage(RESNET, "net")
    assert choice and choice.engine == engine and "SERVE_CPU_ENGINE" in choice.reason
    config = read_file(tmp_path / "staged/net/config.pbtxt")
    assert (config.platform, config.backend) == backend
    assert (config.input, config.parameters["client"].string_value) == (read_config(RESNET, "gpu").input, "resnet")
    assert (tmp_path / "staged/net/1").resolve() == RESNET / "1"
    made.remove("net")
    assert not list((tmp_path / "staged").iterdir())


def test_a_file_for_this_device_that_says_what_differs_becomes_a_whole_one(tmp_path: Path) -> None:
    (write(tmp_path / "net", f"{ONNX} {X} {Y}") / "configs").mkdir()
    (tmp_path / "net/configs/cpu.pbtxt").write_text("instance_group { kind: KIND_CPU }")
    for device, has in (("cpu", 1), ("gpu", 0)):
        store(tmp_path, SERVE_DEVICE=device).stage(tmp_path / "net", "net")
        config = read_file(tmp_path / "staged/net/config.pbtxt")
        assert (len(config.instance_group), config.input[0].name) == (has, "x")
        assert not (tmp_path / "staged/net/configs").exists()


def test_the_parts_of_an_ensemble_get_the_names_that_triton_knows_them_by(tmp_path: Path) -> None:
    step = 'ensemble_scheduling { step { model_name: "part" model_version: -1 } }'
    write(tmp_path / "whole", f"name: 'whole' {step}")
    store(tmp_path).stage(tmp_path / "whole", "a.tar.gz", {"part": "a.tar.gz__part"})
    config = read_file(tmp_path / "staged/a.tar.gz/config.pbtxt")
    assert (config.name, config.platform) == ("", "ensemble")
    assert config.ensemble_scheduling.step[0].model_name == "a.tar.gz__part"


def make(folder: Path) -> Path:
    (folder / "1").mkdir(parents=True)
    (folder / "1/model.onnx").write_text("weights")
    (folder / "config.pbtxt").write_text("as it lies")
    return folder


def rewrite(folder: Path) -> None:
    (folder / "config.pbtxt").write_text("of equal l.")


def replace_file(folder: Path) -> None:
    """Replace a file with one of the same size and time."""
    file, found = folder / "config.pbtxt", (folder / "config.pbtxt").stat()
    (folder / "new").write_text("of equal l.")
    os.utime(folder / "new", ns=(found.st_atime_ns, found.st_mtime_ns))
    (folder / "new").replace(file)


def add_a_version(folder: Path) -> None:
    (folder / "2").mkdir()


def remove(folder: Path) -> None:
    (folder / "1/model.onnx").unlink()


@pytest.mark.parametrize("change", [rewrite, replace_file, add_a_version, remove])
def test_a_signature_tells_a_change(tmp_path: Path, change: Callable[[Path], None]) -> None:
    before = signature(make(tmp_path / "model"))
    assert signature(tmp_path / "model") == before
    change(tmp_path / "model")
    assert signature(tmp_path / "model") != before


def test_what_no_model_reads_is_no_change_and_a_link_to_its_own_folder_is_no_end(tmp_path: Path) -> None:
    before = signature(make(tmp_path / "model"))
    (tmp_path / "model/.config.pbtxt.swp").touch()
    (tmp_path / "model/__pycache__").mkdir()
    (tmp_path / "model/1/again").symlink_to(tmp_path / "model")
    assert signature(tmp_path / "model") == before
    assert signature(tmp_path / "nowhere") == ""


def test_a_copy_stays_as_it_was_and_a_large_file_of_it_is_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LARGEST_COPY", 20)
    model = make(tmp_path / "model")
    (model / "1/large").write_text("x" * 21)
    (model / "2").symlink_to(model / "1")
    copy(model, tmp_path / "copy")
    assert (tmp_path / "copy/1/large").samefile(model / "1/large")
    (model / "config.pbtxt").write_text("changed")
    (model / "new").write_text("another large one")
    (model / "new").replace(model / "1/large")
    assert (tmp_path / "copy/config.pbtxt").read_text() == "as it lies"
    assert (tmp_path / "copy/1/large").read_text() == (tmp_path / "copy/2/large").read_text() == "x" * 21
