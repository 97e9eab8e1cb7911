"""Tests that a model is built only if something changed, completely or not at all, and without
touching other files. Also tests mistakes on the command line."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from build_engines.__main__ import OPTION_FIELDS, main
from build_engines.build import build
from build_engines.build_record import read_record
from build_engines.errors import BuildError, UsageError
from build_engines.families.find_family import FAMILIES
from build_engines.publish import SCRATCH, scratch_folder
from build_engines.recipes import RECIPES
from build_engines.request import Request
from tests.build_engines.models import save_scale
from tests.support.harness import PATIENCE, ROOT, wait_until

pytestmark = pytest.mark.unit


def request(tmp_path: Path, **options: object) -> Request:
    file = tmp_path / "scale.onnx"
    if not file.exists():
        save_scale(file)
    return Request("own", str(file), repository=tmp_path / "models", **options)  # type: ignore[arg-type]


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_build_again_only_after_a_change(tmp_path: Path) -> None:
    folder, is_new = build(request(tmp_path))
    assert (folder, is_new) == (tmp_path / "models/own", True)
    assert build(request(tmp_path)) == (folder, False)
    assert build(request(tmp_path, max_batch_size=4))[1]
    save_scale(tmp_path / "scale.onnx", "float[batch, 5]")
    assert build(request(tmp_path, max_batch_size=4))[1]
    assert not build(request(tmp_path, max_batch_size=4))[1]
    (folder / "config.pbtxt").write_text("")
    assert build(request(tmp_path, max_batch_size=4))[1]
    assert (folder / "config.pbtxt").stat().st_size > 100


@pytest.mark.parametrize("name", ["labels", "tokenizer"])
def test_refuse_a_missing_file_when_the_request_is_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"--{name} .*typo\.txt"):
        request(tmp_path, **{name: tmp_path / "typo.txt"})


def test_build_again_after_a_change_of_weights_beside_the_file(tmp_path: Path) -> None:
    save_scale(tmp_path / "scale.onnx", external=True)
    folder, _ = build(request(tmp_path))
    assert not build(request(tmp_path))[1]
    (tmp_path / "weights.bin").write_bytes(np.float32(3).tobytes())
    assert build(request(tmp_path))[1]
    assert (folder / "1/weights.bin").read_bytes() == np.float32(3).tobytes()


def test_record_sources_and_results_but_nothing_of_this_machine(tmp_path: Path) -> None:
    folder, _ = build(request(tmp_path))
    record = read_record(folder)
    assert record["made_from"]["weights"] == "scale.onnx"
    assert record["source_sha256"] == record["files"]["1/model.onnx"]
    assert str(tmp_path) not in (folder / "build.json").read_text()


def test_keep_the_old_model_if_a_build_fails(tmp_path: Path) -> None:
    folder, _ = build(request(tmp_path))
    before = files(folder)
    with pytest.raises(BuildError):
        build(request(tmp_path, client="yolov5"))
    assert files(folder) == before
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["own"]


def test_keep_files_of_the_user_in_the_folder(tmp_path: Path) -> None:
    folder, _ = build(request(tmp_path))
    (folder / "2").mkdir()
    (folder / "2/model.onnx").write_bytes((folder / "1/model.onnx").read_bytes())
    (folder / "notes.txt").write_text("mine")
    assert build(request(tmp_path, max_batch_size=2))[1]
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "2/model.onnx").is_file()


def test_check_the_files_of_the_user_before_the_model_is_replaced(tmp_path: Path) -> None:
    folder, _ = build(request(tmp_path))
    (folder / "labels.txt").write_text("a")
    (folder / "client.py").write_text("raise OSError('the client of the user')")
    before = files(folder)
    with pytest.raises(BuildError, match="the client of the user"):
        build(request(tmp_path, max_batch_size=2))
    assert files(folder) == before


def test_remove_what_a_killed_build_left_after_a_day(tmp_path: Path) -> None:
    old, young = tmp_path / f"{SCRATCH}old", tmp_path / f"{SCRATCH}young"
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (time.time() - 100_000,) * 2)
    with scratch_folder(tmp_path):
        assert (old.exists(), young.exists()) == (False, True)


def test_leave_nothing_half_made_if_a_build_is_interrupted(tmp_path: Path) -> None:
    """Calibration on 300 images takes long enough for an interruption."""
    images, repository = tmp_path / "images", tmp_path / "models"
    images.mkdir()
    for each in range(300):
        shutil.copy(ROOT / "model_repository/yolov5/example.jpg", images / f"{each}.jpg")
    command = [sys.executable, "-m", "build_engines", "build", "yolov5", "--precision", "int8"]
    command += ["--calibration", str(images), "--out", str(repository)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: list(repository.glob(f"{SCRATCH}*/1")), "the build has begun")
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    # CPython itself ends by SIGINT if the signal arrives during an exec(), such as the creation of
    # a dataclass
    assert process.returncode in (130, -signal.SIGINT), errors
    assert errors.strip().splitlines()[-1].startswith("build_engines: ")
    assert "Traceback" not in errors
    assert not repository.exists()


def test_repeat_an_interruption_that_a_library_swallows() -> None:
    code = """
import contextlib, signal, time
from build_engines import __main__ as command
def verify(_):
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    time.sleep(600)
command._verify, command.REPEAT_INTERRUPT_SECONDS = verify, 0.1
command.interrupt_at_signals()
raise SystemExit(command.main(["verify", "own"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (
        130,
        "build_engines: interrupted; no model was changed\n",
    )


@pytest.mark.parametrize(
    ("number", "step", "code", "message"),
    [
        ("SIGINT", "check", 130, "build_engines: interrupted; no model was changed\n"),
        ("SIGTERM", "publish", 0, ""),
    ],
)
def test_say_whether_an_interrupted_build_changed_the_model(
    number: str, step: str, code: int, message: str, tmp_path: Path
) -> None:
    """The signal arrives immediately after a step of the build."""
    arguments = ["build", "own", "--weights", str(save_scale(tmp_path / "scale.onnx"))]
    arguments += ["--no-load", "--out", str(tmp_path / "models")]
    program = f"""
import signal
from build_engines import __main__ as command, build
step = build.{step}
def interrupted(*arguments):
    step(*arguments)
    signal.raise_signal(signal.{number})
build.{step} = interrupted
command.interrupt_at_signals()
raise SystemExit(command.main({arguments}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (code, message)
    is_published = (tmp_path / "models/own").exists()
    assert is_published == ("built " in done.stdout) == (code == 0)


def test_accept_a_client_s_name_with_hyphens_in_a_request() -> None:
    assert Request("own", client="image-classification").named_client == "image_classification"


def test_list_every_client_in_the_help() -> None:
    about = next(each.metadata["help"] for each in OPTION_FIELDS if each.name == "client")
    names = [family.client.replace("_", "-") for family in FAMILIES]
    assert [name for name in names if name not in about] == []


def test_list_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*RECIPES, "NAME"]


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["build", "nonsense"], 2, "'nonsense'"),
        (["build", "../resnet"], 2, "../resnet"),
        (["build", "", "--weights", "net.onnx"], 2, "'' cannot be the name"),
        (["build", "resnet", "--name", "a/b"], 2, "a/b"),
        (["build", "resnet", "--set", "mean"], 2, "NAME=VALUE"),
        (["build", "resnet", "--mean", "0.5"], 2, "--mean 0.5; use --set mean=0.5"),
        (["build", "resnet", "--crop-pct=1"], 2, "use --set crop_pct=1"),
        (["build", "resnet", "--nothing", "1"], 2, "unrecognized arguments: --nothing 1\n"),
        (["build", "resnet", "--precision", "int4"], 2, "int4"),
        (["build", "resnet", "--precision", "int8"], 2, "--calibration"),
        (["build", "resnet", "--out", "/proc/nowhere"], 1, "/proc/nowhere"),
        (["build", "own", "--weights", "docs"], 1, "config.json"),
        (["verify", "absent"], 1, "absent"),
        (["archive", "absent"], 1, "absent"),
        (["archive", "resnet", "--copies", "0"], 2, "--copies"),
        ([], 2, "COMMAND"),
    ],
)
def test_report_a_mistake_in_one_line(
    arguments: list[str],
    code: int,
    named: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    try:
        assert main(arguments) == code
    except SystemExit as end:  # raised by argparse
        assert end.code == code
    errors = capsys.readouterr().err
    assert named in errors
    assert "Traceback" not in errors
    assert errors.strip().splitlines()[-1] == errors.strip() or errors.startswith("usage:")


def test_name_a_missing_package(tmp_path: Path) -> None:
    """torch cannot be imported here, as on a machine that has only the packages for serving."""
    code = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
from build_engines.__main__ import main, make_parser, request_of
sys.exit(main(sys.argv[1:]))
"""
    (tmp_path / "best.pt").write_bytes(b"weights")
    arguments = ["pets", "--weights", str(tmp_path / "best.pt"), "--client", "yolov5"]
    arguments += ["--out", str(tmp_path / "models")]
    done = subprocess.run(
        [sys.executable, "-c", code, "build", *arguments], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 1
    assert "'torch'" in done.stderr
    assert not (tmp_path / "models").exists()
