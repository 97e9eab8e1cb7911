"""The command line as a user meets it."""

import subprocess
import sys
from pathlib import Path

import pytest

from build_engines.__main__ import main
from build_engines.recipes import RECIPES
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit


def test_list_names_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*RECIPES, "NAME"]


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["build", "nonsense"], 2, "'nonsense'"),
        (["build", "../resnet"], 2, "../resnet"),
        (["build", "resnet", "--name", "a/b"], 2, "a/b"),
        (["build", "resnet", "--set", "mean"], 2, "NAME=VALUE"),
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
def test_a_mistake_ends_with_one_line_that_names_it(
    arguments: list[str], code: int, named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    try:
        assert main(arguments) == code
    except SystemExit as end:  # argparse's own
        assert end.code == code
    errors = capsys.readouterr().err
    assert named in errors
    assert "Traceback" not in errors
    assert errors.strip().splitlines()[-1] == errors.strip() or errors.startswith("usage:")


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    """torch is hidden, as where only what serves is installed."""
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
    done = subprocess.run([sys.executable, "-c", code, "build", *arguments], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert "'torch'" in done.stderr
    assert not (tmp_path / "models").exists()
