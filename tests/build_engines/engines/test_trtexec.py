"""trtexec's command lines by version, and a run of it. The program is a recorded stand-in (tests/support/stand_ins)."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import psutil
import pytest

from build_engines.engines import trtexec
from build_engines.engines.trtexec import Build, TrtexecError, find_trtexec
from tests.support.harness import PATIENCE, ROOT, make_scale, wait_until
from tests.support.stand_ins import Nvidia

pytestmark = pytest.mark.unit

VARIES = {"x": ((1, 1), (4, 16), (8, 64))}
BUILD = Build(Path("m.onnx"), "fp16", VARIES, Path("t.cache"))
PLAN = Path("m.plan")


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nvidia:
    made = Nvidia(tmp_path / "nvidia")
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def wanted(nvidia: Nvidia, tmp_path: Path) -> Build:
    """Build of an ONNX file with one input of [batch, n]."""
    make_scale(tmp_path)
    return replace(BUILD, onnx=tmp_path / "scale/1/model.onnx", timing=tmp_path / "timing")


@pytest.mark.usefixtures("nvidia")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (7203, "--explicitBatch --fp16 --workspace=4096 --buildOnly"),
        (8205, "--fp16 --timingCacheFile=t.cache --workspace=4096 --buildOnly"),
        (8401, "--fp16 --timingCacheFile=t.cache --memPoolSize=workspace:4096 --buildOnly"),
        (8601, "--fp16 --timingCacheFile=t.cache --memPoolSize=workspace:4096 --skipInference"),
        (100800, "--fp16 --timingCacheFile=t.cache --memPoolSize=workspace:4096 --skipInference"),
    ],
)
def test_the_command_line_is_that_of_the_version(code: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_TENSORRT", str(code))
    shapes = ["--minShapes=x:1x1", "--optShapes=x:4x16", "--maxShapes=x:8x64"]
    _, *given = trtexec.command(trtexec.inspect(), BUILD, PLAN)
    assert [word for word in given if "Shapes" in word] == shapes
    rest = [word for word in given if "Shapes" not in word]
    assert rest == ["--onnx=m.onnx", "--saveEngine=m.plan", *words.split()]


@pytest.mark.usefixtures("nvidia")
def test_several_inputs_share_one_option_and_names_with_colons_are_quoted() -> None:
    several = replace(BUILD, profile={"a:0": ((1, 2),) * 3, "b": ((1,),) * 3})
    assert "--minShapes='a:0':1x2,b:1" in trtexec.command(trtexec.inspect(), several, PLAN)


@pytest.mark.parametrize("text", ["exit 127", "echo hello", "echo libnvinfer.so.10: cannot open >&2; exit 127"])
def test_a_trtexec_that_does_not_run_is_an_error(nvidia: Nvidia, text: str) -> None:
    (nvidia.folder / "trtexec").write_text(f"#!/bin/sh\n{text}\n")
    with pytest.raises(TrtexecError, match=r"status 127|hello|libnvinfer"):
        trtexec.inspect()


def build(wanted: Build) -> list[str]:
    """Return the progress that was reported."""
    said: list[str] = []
    trtexec.build(trtexec.inspect(), wanted, wanted.timing.with_name("model.plan"), said.append)
    return said


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [("STAND_IN_FAULT", "[MemUsage] out of memory", r"\[MemUsage\] out of memory"), ("STAND_IN_EMPTY", "1", "no plan")],
)
def test_a_build_that_fails_leaves_the_old_plan(
    wanted: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    build(wanted)
    assert onnx.load(tmp_path / "model.plan").metadata_props[0].value == "built by the stand-in for trtexec"
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    monkeypatch.setenv(variable, value)
    with pytest.raises(TrtexecError, match=said):
        build(replace(wanted, precision="fp32"))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert not list(tmp_path.glob(".plan-*"))


KILLED = """
import sys
from build_engines.engines import trtexec
trtexec.run([sys.argv[1], f"--onnx={sys.argv[2]}", "--saveEngine=x", "--minShapes=x:1x1", "--optShapes=x:1x1",
             "--maxShapes=x:1x1"], print)
"""


def test_trtexec_dies_with_its_parent_even_by_sigkill(nvidia: Nvidia, wanted: Build) -> None:
    command = [sys.executable, "-c", KILLED, find_trtexec(), str(wanted.onnx)]
    ours = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "STAND_IN_SECONDS": "600"})
    wait_until(nvidia.runs, "trtexec runs")
    ours.send_signal(signal.SIGKILL)
    ours.wait(PATIENCE)
    wait_until(lambda: is_dead(nvidia.runs()[0]["pid"]), "trtexec is dead")


def is_dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
