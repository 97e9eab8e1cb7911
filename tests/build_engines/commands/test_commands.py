"""The command line as a user meets it; what it builds is served."""

import subprocess
import sys
from pathlib import Path

import pytest

from build_engines.__main__ import main
from build_engines.demos.resnet import TRAINED
from build_engines.recipes import RECIPES
from tests.build_engines.models import save_scale
from tests.support.harness import PATIENCE, ROOT, Server


def test_list_names_every_model_and_its_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*RECIPES, "NAME"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["build", "nonsense"], 2, "'nonsense' is not known; the models are efficientnet,"),
        (["build", "resnet", "--weights", "absent"], 2, "there is no such file; it takes pretrained, train, a PATH"),
        (["build", "../resnet"], 2, "cannot be the name of a model's folder"),
        (["build", "resnet", "--name", "a/b"], 2, "cannot be the name of a model's folder"),
        (["build", "resnet", "--set", "mean"], 2, "it is NAME=VALUE"),
        (["build", "resnet", "--max-batch-size", "-1"], 2, "less than 0"),
        (["build", "resnet", "--size", "big"], 2, "invalid"),
        (["build", "resnet", "--precision", "int4"], 2, "invalid choice"),
        (["build", "resnet", "--out", "/proc/nowhere"], 1, "/proc/nowhere"),
        (["build", "own", "--weights", "README.md"], 1, "README.md is none of: an ONNX file"),
        (["build", "own", "--weights", "docs"], 1, "there is no config.json in docs"),
        (["inspect", "absent"], 1, "there is no model 'absent'"),
        (["verify", "absent"], 1, "there is no model 'absent'"),
        (["archive", "absent"], 1, "there is no model 'absent'"),
        (["archive", "resnet", "--copies", "0"], 2, "not at least 1"),
        (["verify", "resnet", "--repository", "nowhere"], 1, "there are: none"),
        ([], 2, "required"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    try:
        assert main(arguments) == code
    except SystemExit as end:  # argparse's own
        assert end.code == code
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors
    assert errors.strip().splitlines()[-1] == errors.strip() or errors.startswith("usage:")


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    """torch is hidden, as where only what serves is installed."""
    code = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "sklearn"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])
sys.meta_path.insert(0, Blocker())
from build_engines.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
    for arguments, package in (
        (["resnet50", "--weights", "random"], "torch"),
        (["resnet", "--precision", "int8"], "sklearn"),
    ):
        command = [sys.executable, "-c", code, "build", *arguments, "--out", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
        assert done.returncode == 1
        assert f"'{package}', which is not installed" in done.stderr
        assert "make dev" in done.stderr
        assert list(tmp_path.iterdir()) == []
    command = [sys.executable, "-c", code, "build", "resnet", "--out", str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, timeout=PATIENCE).returncode == 0


def test_inspect_says_what_a_model_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "resnet", "--out", str(tmp_path)]) == 0
    (tmp_path / "resnet/labels.txt").write_text("0\n")
    capsys.readouterr()
    assert main(["inspect", "resnet", "--repository", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    for part in (
        "client      resnet",
        "input       input UINT8 [3, 64, 64]",
        "output      logits FP32 [10]",
        "2.8 MB",
        "resnet from pretrained, precision fp32",
        TRAINED.sha256,
        "since the build: labels.txt",
        "batch 1: ",
        "batch 8: ",
        "1 × KIND_CPU",
    ):
        assert part in said


def test_inspect_works_on_a_model_that_was_not_built_here(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "own/1").mkdir(parents=True)
    (tmp_path / "own/config.pbtxt").write_text('backend: "python"\ninput { name: "x" data_type: TYPE_FP32 dims: [1] }')
    assert main(["inspect", "own", "--repository", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "there is no build.json" in said
    assert "not measured: own is of platform 'python', which this command does not run" in said


def test_what_is_built_is_served(tmp_path: Path) -> None:
    models = tmp_path / "models"
    file = save_scale(tmp_path / "scale.onnx")
    options = ["--warm-up", "--instances", "1", "--versions", "all"]
    assert main(["build", "resnet", "--precision", "int8", "--out", str(models)]) == 0
    assert main(["build", "scale", "--weights", str(file), "--out", str(models), *options]) == 0
    server = Server(tmp_path, models).wait_ready()
    try:
        example = (ROOT / "model_repository/resnet/example.png").read_bytes()
        reply = server.post(params={"model_name": "resnet_int8"}, data=example, headers={"Content-Type": "image/png"})
        assert reply.json()["predictions"][0]["classes"][0]["label"] == "6"
        tensor = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [1.0] * 8}
        reply = server.post("/v2/models/scale/infer", json={"inputs": [tensor]})
        assert reply.json()["outputs"][0]["data"] == [2.0] * 8
        pixels = {"name": "input", "shape": [1, 3, 64, 64], "datatype": "UINT8", "data": [0] * 12288}
        asked = {"name": "logits", "parameters": {"classification": 1}}
        reply = server.post("/v2/models/resnet_int8/infer", json={"inputs": [pixels], "outputs": [asked]})
        _, index, label = reply.json()["outputs"][0]["data"][0].split(":")
        assert index == label  # the labels are the digits themselves
    finally:
        assert server.stop() == 0
