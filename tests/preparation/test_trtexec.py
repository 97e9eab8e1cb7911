"""trtexec's command lines by version, and a run of it. The program is a recorded stand-in (tests/support/stand_ins)."""

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import psutil
import pytest

from serving.preparation import trtexec
from serving.preparation.trtexec import TrtexecError
from serving.repository import fingerprint
from serving.repository.fingerprint import Build, Fingerprint, Hardware, find_trtexec
from tests.support.harness import PATIENCE, ROOT, make_scale, wait_until
from tests.support.stand_ins import Nvidia

T4 = Hardware("Tesla T4", "7.5", "10.8.0")
VARIES = {"x": ((1, 1), (4, 16), (8, 64))}
BUILD = Build("abc", "fp16", VARIES)
PLACES = (Path("m.onnx"), Path("m.plan"), Path("t.cache"), Path("c.cache"))


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nvidia:
    made = Nvidia(tmp_path / "nvidia")
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An ONNX file with one input of [batch, n]."""
    make_scale(tmp_path)
    return tmp_path / "scale/1/model.onnx"


def found(code: int = 100800) -> trtexec.Trtexec:
    os.environ["STAND_IN_TENSORRT"] = str(code)
    return trtexec.inspect(find_trtexec(os.environ))


@pytest.mark.parametrize(
    ("code", "version"), [(7203, "7.2.3"), (8601, "8.6.1"), (100300, "10.3.0"), (101301, "10.13.1")]
)
def test_the_version_is_unpacked(code: int, version: str) -> None:
    assert trtexec.Trtexec("trtexec", code, frozenset()).version == version


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
    _, *given = trtexec.command(found(code), BUILD, *PLACES)
    assert [word for word in given if "Shapes" in word] == shapes
    rest = [word for word in given if "Shapes" not in word]
    assert rest == ["--onnx=m.onnx", "--saveEngine=m.plan", *words.split()]


@pytest.mark.usefixtures("nvidia")
def test_int8_reads_the_calibration_cache_and_may_fall_back_to_fp16() -> None:
    words = trtexec.command(found(), replace(BUILD, precision="int8", calibration_sha256="x"), *PLACES)
    assert {"--int8", "--fp16", "--calib=c.cache"} < set(words)


@pytest.mark.usefixtures("nvidia")
def test_fp32_and_fixed_shapes_need_no_option() -> None:
    _, *words = trtexec.command(found(), Build("abc"), *PLACES)
    names = [word.partition("=")[0] for word in words]
    assert names == ["--onnx", "--saveEngine", "--timingCacheFile", "--memPoolSize", "--skipInference"]


@pytest.mark.usefixtures("nvidia")
def test_several_inputs_stand_in_one_option_and_colons_are_quoted() -> None:
    build = Build("abc", profile={"a:0": ((1, 2),) * 3, "b": ((1,),) * 3})
    assert "--minShapes='a:0':1x2,b:1" in trtexec.command(found(), build, *PLACES)


@pytest.mark.usefixtures("nvidia")
def test_a_precision_that_the_version_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_TENSORRT", "110000")
    with pytest.raises(TrtexecError, match=r"TensorRT 11\.0\.0 has no --fp16.*--precision fp32"):
        trtexec.command(found(110000), BUILD, *PLACES)


def test_a_missing_trtexec_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TrtexecError, match=r"there is no trtexec here.*docker run --gpus all.*nvidia/tensorrt"):
        trtexec.inspect("")


@pytest.mark.parametrize("text", ["exit 127", "echo hello", "echo libnvinfer.so.10: cannot open >&2; exit 127"])
def test_a_trtexec_that_does_not_run_is_told(tmp_path: Path, text: str) -> None:
    program = tmp_path / "trtexec"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    with pytest.raises(TrtexecError, match=r"--help failed: (status 127|hello|libnvinfer)"):
        trtexec.inspect(str(program))


def build(model: Path, plan: Path, wanted: Build = BUILD, seconds: float = math.inf) -> list[str]:
    """What it said meanwhile."""
    said: list[str] = []
    made = Fingerprint(T4, wanted)
    trtexec.build(found(), made, model, plan, plan.with_name("timing"), said.append, seconds)
    return said


@pytest.mark.usefixtures("nvidia")
def test_a_plan_lies_there_with_its_fingerprint_and_nothing_else(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    build(model, folder / "model.plan")
    assert sorted(path.name for path in folder.iterdir()) == ["fingerprint.json", "model.plan", "timing"]
    assert fingerprint.read(folder) == Fingerprint(T4, BUILD)
    assert onnx.load(folder / "model.plan").metadata_props[0].value == "built by the stand-in for trtexec"


@pytest.mark.usefixtures("nvidia")
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        (
            "STAND_IN_FAULT",
            "[MemUsage] out of memory",
            r"failed \(status 1\): \[MemUsage\] out of memory \| .* failed$",
        ),
        ("STAND_IN_EMPTY", "1", "wrote no plan"),
    ],
)
def test_a_build_that_fails_leaves_the_old_plan_and_its_fingerprint(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    build(model, tmp_path / "model.plan")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    monkeypatch.setenv(variable, value)
    with pytest.raises(TrtexecError, match=said):
        build(model, tmp_path / "model.plan", replace(BUILD, precision="fp32"))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert not list(tmp_path.glob(".plan-*"))


@pytest.mark.usefixtures("nvidia")
def test_the_shapes_that_trtexec_refuses_are_told(model: Path, tmp_path: Path) -> None:
    with pytest.raises(TrtexecError, match=r"what varies is \{'x'\}"):
        build(model, tmp_path / "model.plan", Build("abc"))


@pytest.mark.usefixtures("nvidia")
def test_a_build_that_takes_too_long_is_stopped(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_SECONDS", "600")
    with pytest.raises(TrtexecError, match="stopped after 1 s"):
        build(model, tmp_path / "model.plan", seconds=1)


@pytest.mark.usefixtures("nvidia")
def test_progress_is_its_last_line(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_SECONDS", "1.5")
    monkeypatch.setattr(trtexec, "REPORT_SECONDS", 0.5)
    said = build(model, tmp_path / "model.plan")
    assert "[TRT] Local timing cache in use. Profiling results in this builder pass will not be stored." in said


@pytest.mark.usefixtures("nvidia")
def test_the_calibration_cache_gets_the_first_line_of_this_tensorrt(model: Path, tmp_path: Path) -> None:
    """The stand-in refuses another, as TensorRT does."""
    model.with_name("calibration.cache").write_text("TRT-8601-EntropyCalibration2\nx: 3c010204\n")
    build(model, tmp_path / "model.plan", replace(BUILD, precision="int8", calibration_sha256="x"))
    assert (tmp_path / "model.plan").exists()


@pytest.mark.usefixtures("nvidia")
def test_a_missing_calibration_cache_is_told(model: Path, tmp_path: Path) -> None:
    with pytest.raises(TrtexecError, match=r"INT8 needs the calibration cache .*calibration\.cache"):
        build(model, tmp_path / "model.plan", replace(BUILD, precision="int8", calibration_sha256="x"))


KILLED = """
import math, sys
from pathlib import Path
from serving.preparation import trtexec
trtexec.run([sys.argv[1], f"--onnx={sys.argv[2]}", "--saveEngine=x", "--minShapes=x:1x1", "--optShapes=x:1x1",
             "--maxShapes=x:1x1"], print, math.inf)
"""


def test_trtexec_dies_with_whoever_runs_it_even_by_sigkill(nvidia: Nvidia, model: Path) -> None:
    command = [sys.executable, "-c", KILLED, find_trtexec(os.environ), str(model)]
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
