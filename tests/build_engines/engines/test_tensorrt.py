"""Tests `build --for tensorrt` from the command line. Stand-ins replace trtexec and nvidia-smi
(tests/support/stand_ins), except in one test, which runs the real trtexec if it is installed."""

import io
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

from build_engines.comparison import verify
from build_engines.engines.calibration import Batches
from build_engines.engines.tensorrt import activation_ranges, calibration_cache
from build_engines.engines.trtexec import Trtexec, find_trtexec, this_gpu
from build_engines.stored_model import open_model
from serving.repository.model_config import read_config
from tests.build_engines.models import run, save_digits
from tests.support.harness import PATIENCE, ROOT, make_scale, parsed, wait_until
from tests.support.stand_ins import CAPABILITY, DRIVER, GPU, Nvidia

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def build(out: Path, environ: Mapping[str, str], *arguments: str) -> Done:
    """Run the command in this process. An exception that would be shown as a traceback fails the
    test."""
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as printed,
        redirect_stderr(io.StringIO()) as failed,
    ):
        for name, value in environ.items():
            patch.setenv(name, value)
        code = run(f"build {' '.join(arguments)} --for tensorrt --no-load --out {out}")
    return Done(code, printed.getvalue(), failed.getvalue())


@pytest.fixture
def nvidia(tmp_path: Path) -> Nvidia:
    return Nvidia(tmp_path / "nvidia")


def test_write_the_plan_the_onnx_file_and_both_configurations(
    tmp_path: Path, nvidia: Nvidia
) -> None:
    done = build(tmp_path / "models", nvidia.environ, "resnet", "--precision", "fp16")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "models/resnet"
    assert sorted(path.name for path in (folder / "1").iterdir()) == ["model.onnx", "model.plan"]
    (run,) = nvidia.runs()
    assert (run["optShapes"], "fp16" in run) == ("input:16x3x64x64", True)
    gpu, cpu = ((folder / name).read_text() for name in ("config.pbtxt", "configs/cpu.pbtxt"))
    assert (
        'platform: "tensorrt_plan"' in gpu
        and "KIND_GPU" in gpu
        and "preferred_batch_size: [16, 32]" in gpu
    )
    assert 'platform: "onnxruntime_onnx"' in cpu and "KIND_CPU" in cpu and "input" not in cpu
    assert read_config(folder, "cpu").input == read_config(folder, "gpu").input
    assert json.loads((folder / "build.json").read_text())["engine"] == {
        "gpu": GPU,
        "compute_capability": CAPABILITY,
        "driver": DRIVER,
        "tensorrt": "10.8.0",
    }


def test_serve_the_onnx_file_with_the_tensorrt_provider_for_gpu(tmp_path: Path) -> None:
    assert run(f"build resnet --for gpu --precision fp16 --no-load --out {tmp_path}/models") == 0
    folder = tmp_path / "models/resnet"
    assert [path.name for path in (folder / "1").iterdir()] == ["model.onnx"]
    gpu, cpu = read_config(folder, "gpu"), read_config(folder, "cpu")
    (accelerator,) = gpu.optimization.execution_accelerators.gpu_execution_accelerator
    assert (gpu.platform, accelerator.name) == ("onnxruntime_onnx", "tensorrt")
    assert accelerator.parameters == {
        "precision_mode": "FP16",
        "trt_engine_cache_enable": "true",
        "trt_engine_cache_path": "/tmp/serve-engines",
    }
    assert (cpu.input, cpu.HasField("optimization")) == (gpu.input, False)


def test_treat_a_build_as_current_only_on_its_own_gpu(tmp_path: Path, nvidia: Nvidia) -> None:
    other = Nvidia(tmp_path / "other", gpu="Stand-in A10G")
    build(tmp_path / "models", nvidia.environ, "resnet")
    build(tmp_path / "models", nvidia.environ, "resnet")
    assert (len(nvidia.runs()), other.runs()) == (1, [])
    build(tmp_path / "models", other.environ, "resnet")
    assert len(other.runs()) == 1
    record = json.loads((tmp_path / "models/resnet/build.json").read_text())
    assert record["engine"]["gpu"] == "Stand-in A10G"


@pytest.mark.parametrize("gpu", [True, False])
def test_verify_the_engine_that_is_served(
    tmp_path: Path, nvidia: Nvidia, monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    """With a GPU, the plan is served; without one, the ONNX file is."""
    assert build(tmp_path / "models", nvidia.environ, "resnet").returncode == 0
    for name, value in nvidia.environ.items() if gpu else ():
        monkeypatch.setenv(name, value)
    stored = open_model("resnet", tmp_path / "models")
    scores = verify(stored, None, None, 1)
    assert scores[0].value == pytest.approx(1.0)
    assert len([each for each in nvidia.runs() if "loadInputs" in each]) == (1 if gpu else 0)


def test_build_a_profile_of_lengths_for_texts(tmp_path: Path, nvidia: Nvidia) -> None:
    assert build(tmp_path / "models", nvidia.environ, "bert").returncode == 0
    (run,) = nvidia.runs()
    names = ("input_ids", "attention_mask", "token_type_ids")
    assert run["minShapes"] == ",".join(f"{name}:1x1" for name in names)
    assert run["optShapes"] == ",".join(f"{name}:16x128" for name in names)
    assert run["maxShapes"] == ",".join(f"{name}:32x512" for name in names)


def test_ship_the_calibration_cache_with_int8(tmp_path: Path, nvidia: Nvidia) -> None:
    calibration = ["--calibration", str(save_digits(tmp_path, 8))]
    done = build(tmp_path / "models", nvidia.environ, "resnet", "--precision", "int8", *calibration)
    assert done.returncode == 0, done.stderr
    (run,) = nvidia.runs()
    assert {"int8", "fp16", "calib"} < run.keys()
    assert "verify resnet" in done.stdout  # a plan is not compared at the end of its build
    few = ["--calibration", str(ROOT / "model_repository/resnet"), "--force"]
    for more, code in (((), 2), (("--no-compare",), 0)):
        done = build(
            tmp_path / "models", nvidia.environ, "resnet", "--precision", "int8", *few, *more
        )
        assert done.returncode == code
    first, *ranges = (tmp_path / "models/resnet/1/calibration.cache").read_text().splitlines()
    assert first == "TRT-100800-EntropyCalibration2"
    names = {line.partition(":")[0] for line in ranges}
    graph = onnx.load(tmp_path / "models/resnet/1/model.onnx").graph
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    assert {convolutions[0].input[0], *(node.output[0] for node in convolutions)} <= names


@pytest.mark.parametrize(
    ("precision", "environ", "program", "named"),
    [
        ("fp32", {"STAND_IN_FAULT": "Error Code 2: OutOfMemory"}, "", "OutOfMemory"),
        ("fp32", {"STAND_IN_EMPTY": "1"}, "", "no plan"),
        ("fp32", {"STAND_IN_TENSORRT": "8601"}, "", "v8601"),
        ("fp16", {"STAND_IN_TENSORRT": "110000"}, "", "--fp16"),
        ("fp32", {}, "nvidia-smi: exit 9", "docker run"),
        ("fp32", {}, "trtexec: exit 127", "127"),
        ("fp32", {}, "trtexec: echo hello", "hello"),
        (
            "fp32",
            {},
            "trtexec: echo libnvinfer.so.10: cannot open >&2; exit 127",
            "libnvinfer.so.10",
        ),
    ],
)
def test_report_a_failed_build_and_leave_nothing(
    tmp_path: Path,
    nvidia: Nvidia,
    precision: str,
    environ: dict[str, str],
    program: str,
    named: str,
) -> None:
    if program:
        name, _, text = program.partition(": ")
        (nvidia.folder / name).write_text(f"#!/bin/sh\n{text}\n")
    done = build(tmp_path / "models", nvidia.environ | environ, "resnet", "--precision", precision)
    assert done.returncode == 1
    assert named in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "models").exists()


def test_quote_names_with_colons(
    tmp_path: Path, nvidia: Nvidia, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in nvidia.environ.items():
        monkeypatch.setenv(name, value)
    model = parsed("g (float[n] a) => (float[n] y) { y = Identity (a) }")
    model.graph.input[0].name = model.graph.node[0].input[0] = "a:0"
    onnx.save(model, tmp_path / "model.onnx")
    Trtexec.find().build(
        tmp_path / "model.onnx", "fp16", {"a:0": ((1,), (2,), (4,))}, tmp_path / "timing", None
    )
    (run,) = nvidia.runs()
    assert (run["minShapes"], run["optShapes"], run["maxShapes"]) == (
        "'a:0':1",
        "'a:0':2",
        "'a:0':4",
    )
    assert {"fp16", "skipInference", "timingCacheFile"} < run.keys() and run[
        "memPoolSize"
    ] == "workspace:4096"


KILLED = """
import sys
from build_engines.engines.trtexec import Trtexec
shapes = [f"--{kind}Shapes=x:1x1" for kind in ("min", "opt", "max")]
Trtexec.find().run(f"--onnx={sys.argv[1]}", "--saveEngine=x", *shapes)
"""


def test_end_trtexec_with_its_parent_even_by_sigkill(nvidia: Nvidia, tmp_path: Path) -> None:
    make_scale(tmp_path)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "scale/1/model.onnx")]
    environ = {**os.environ, **nvidia.environ, "STAND_IN_SECONDS": "600"}
    ours = subprocess.Popen(command, cwd=ROOT, env=environ)
    wait_until(nvidia.runs, "trtexec runs")
    ours.send_signal(signal.SIGKILL)
    ours.wait(PATIENCE)
    wait_until(lambda: is_dead(nvidia.runs()[0]["pid"]), "trtexec is dead")


def is_dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_build_with_the_real_trtexec_or_explain_its_absence(tmp_path: Path) -> None:
    done = build(tmp_path / "models", {}, "resnet", "--precision", "fp16")
    program = find_trtexec()
    if program and this_gpu():
        assert done.returncode == 0, done.stderr
        plan = tmp_path / "models/resnet/1/model.plan"
        loaded = subprocess.run(
            [program, f"--loadEngine={plan}", "--shapes=input:4x3x64x64"], check=False
        )
        assert loaded.returncode == 0
    else:
        assert done.returncode == 1
        assert "docker run" in done.stderr


def test_set_the_ranges_to_the_largest_values_in_the_graph(tmp_path: Path) -> None:
    model = parsed("""small (float[batch, 4] x) => (float[batch, 4] y)
        <float[1] two = {2}, float[1] three = {3}> {
        shifted = Sub (x, two)
        positive = Relu (shifted)
        y = Mul (positive, three)
    }""")
    onnx.save(model, tmp_path / "small.onnx")
    batches = np.random.default_rng(0).normal(0, 5, (5, 2, 4)).astype(np.float32)
    ranges = activation_ranges(tmp_path / "small.onnx", Batches([{"x": each} for each in batches]))
    positive = np.maximum(batches - 2, 0)
    values = {"x": batches, "shifted": batches - 2, "positive": positive, "y": 3 * positive}
    largest = {name: float(np.abs(array).max()) for name, array in values.items()}
    assert {name: ranges[name] for name in values} == pytest.approx(largest, rel=1e-6)


def test_write_a_scale_as_the_bytes_of_its_float() -> None:
    """3c010204 is 0.0078740…, or 1/127. TensorRT writes this scale for values up to 1."""
    text = calibration_cache({"x": 1.0, "nothing": 0.0}, 100800)
    assert text == "TRT-100800-EntropyCalibration2\nx: 3c010204\n"
    assert struct.unpack(">f", bytes.fromhex("3c010204"))[0] == pytest.approx(1 / 127)
