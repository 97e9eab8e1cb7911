"""Builds and runs TensorRT plans with NVIDIA's trtexec (TensorRT 10 or newer), and identifies this
machine's GPU. trtexec's options are defined in NVIDIA/TensorRT,
samples/common/sampleOptions.cpp."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from build_engines import onnx_reader
from build_engines.errors import BuildError
from clients.base import Tensors
from serving.host.processes import dying_with_us

# where NVIDIA's TensorRT and PyTorch images install trtexec
FOLDERS = "/usr/src/tensorrt/bin:/opt/tensorrt/bin"
HELP_SECONDS = 60.0  # trtexec loads gigabytes of libraries, perhaps from a slow disk
SMI_SECONDS = 20.0  # nvidia-smi waits while a driver is being loaded
# the oldest major version of TensorRT that is supported; older ones lack INT64, which the text
# clients send
OLDEST = 10
WORKSPACE_MB = 4096
REPORT_SECONDS = 5.0
KEPT_LINES, SHOWN_LINES = 200, 5  # numbers of output lines that are kept, and that an error shows
# int8 includes fp16, so that a layer without an INT8 kernel does not fall back to fp32
PRECISION_FLAGS: Mapping[str, tuple[str, ...]] = {
    "fp32": (),
    "fp16": ("--fp16",),
    "int8": ("--int8", "--fp16"),
}
WHERE_TO_GET_IT = (
    "run this in NVIDIA's image, on the kind of GPU that serves: "
    "docker run --gpus all -v $PWD:/work -w /work nvcr.io/nvidia/tensorrt:YY.MM-py3 …, with "
    "the YY.MM of the tritonserver image (24.05 or newer)"
)
_BANNER = re.compile(r"\[TensorRT v(\d+)\]")
_PREFIX = re.compile(r"^\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[[VIWEF]\] ")

# the minimum, typical and maximum shape of each input whose shape varies
Profile = Mapping[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class Gpu:
    """The first GPU of this machine, as nvidia-smi describes it. `gpu` is its name. build.json
    records the fields under these names."""

    gpu: str
    driver: str
    compute_capability: str


def this_gpu() -> Gpu | None:
    """Return this machine's first GPU, or None if nvidia-smi is missing or fails."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    line = done.stdout.partition("\n")[0]
    values = [value.strip() for value in line.split(",")]
    return Gpu(*values) if done.returncode == 0 and len(values) == 3 else None


def find_trtexec() -> str:
    """Return the path of trtexec, on PATH or in the folders of NVIDIA's images, or "" if it is in
    none of them."""
    folders = os.environ.get("PATH", os.defpath)
    return shutil.which("trtexec", path=f"{folders}:{FOLDERS}") or ""


@dataclass(frozen=True)
class Trtexec:
    """An installed trtexec: its path, its TensorRT version as NvInferVersion.h encodes it (100800),
    and the output of --help."""

    path: str
    code: int
    help: str

    @property
    def version(self) -> str:
        """Return the version with dots: 100800 is 10.8.0."""
        major, rest = divmod(self.code, 10_000)
        minor, patch = divmod(rest, 100)
        return f"{major}.{minor}.{patch}"

    @classmethod
    def find(cls) -> "Trtexec":
        """Find trtexec, and read its version from the output of --help. Raise BuildError if trtexec
        is missing, is too old, does not run, or prints no version."""
        path = find_trtexec()
        if not path:
            raise BuildError(
                f"there is no trtexec here, on PATH or in {FOLDERS}; {WHERE_TO_GET_IT}"
            )
        try:
            done = subprocess.run(
                [path, "--help"], capture_output=True, text=True, timeout=HELP_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as err:
            raise BuildError(f"{path} --help: {err}") from err
        banner = _BANNER.search(done.stdout)
        if done.returncode or not banner:
            last_line = (done.stderr or done.stdout).strip().rpartition("\n")[2]
            raise BuildError(f"{path} --help failed with status {done.returncode}: {last_line}")
        if (code := int(banner[1])) < OLDEST * 10_000:
            raise BuildError(
                f"{path} is of TensorRT v{code}, and {OLDEST} or newer is needed; {WHERE_TO_GET_IT}"
            )
        return cls(path, code, done.stdout)

    def build(
        self, onnx: Path, precision: str, profile: Profile, timing: Path, calibration: Path | None
    ) -> None:
        """Write model.plan beside `onnx`. `timing` is the cache of measured kernel times, and
        `calibration` is INT8's calibration cache.

        Raise BuildError if trtexec fails, or if this version cannot build in this `precision`.
        """
        plan = onnx.with_name("model.plan")
        flags = [f"--onnx={onnx}", f"--saveEngine={plan}", f"--timingCacheFile={timing}"]
        if profile:
            for number, kind in enumerate(("min", "opt", "max")):
                shapes = {name: variants[number] for name, variants in profile.items()}
                flags.append(f"--{kind}Shapes={_shapes_as_text(shapes)}")
        flags += [f"--memPoolSize=workspace:{WORKSPACE_MB}", "--skipInference"]
        for flag in PRECISION_FLAGS[precision]:
            if flag not in self.help:
                raise BuildError(
                    f"trtexec of TensorRT {self.version} has no {flag}: it builds in the "
                    "precision that the ONNX file has; use --precision fp32, or an image "
                    "with TensorRT 10"
                )
            flags.append(flag)
        if calibration:
            flags.append(f"--calib={calibration}")
        self.run(*flags)
        if not plan.is_file() or not plan.stat().st_size:
            raise BuildError("trtexec succeeded but wrote no plan")

    def run(self, *flags: str) -> None:
        """Run trtexec, and print its newest line at most every 5 s. If setpriv is installed, the
        kernel kills trtexec when this process ends, even by SIGKILL. If trtexec fails, raise
        BuildError with its last errors."""
        lines: deque[str] = deque(maxlen=KEPT_LINES)
        started = shown = time.monotonic()
        command = (*dying_with_us("KILL"), self.path, *flags)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            for line in process.stdout or ():
                lines.append(line.rstrip())
                now = time.monotonic()
                if now - shown > REPORT_SECONDS:
                    newest = _PREFIX.sub("", lines[-1])
                    print(f"trtexec, {now - started:.0f} s: {newest}", flush=True)
                    shown = now
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        if code:
            raise BuildError(f"trtexec failed ({_describe_exit(code)}): {_last_errors(lines)}")


def _describe_exit(code: int) -> str:
    return f"status {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"


def _last_errors(lines: Collection[str]) -> str:
    """Return the last errors in trtexec's output or, if it has none, its last lines, without the
    lines that begin with &&&&, in which trtexec repeats its command and prints its status."""
    errors = [line for line in lines if "[E]" in line]
    if not errors:
        errors = [line for line in lines if not line.startswith("&&&&")]
    last = [_PREFIX.sub("", line) for line in errors[-SHOWN_LINES:]]
    return " | ".join(last) or "it printed nothing"


def _quoted(name: str) -> str:
    """Return a tensor's name, quoted if it contains a separator of trtexec's lists."""
    return f"'{name}'" if set(name) & set(":,") else name


def _shapes_as_text(shapes: Mapping[str, Sequence[int]]) -> str:
    """Return the shapes, keyed by tensor name, in trtexec's notation."""
    sizes = {name: "x".join(map(str, shape)) for name, shape in shapes.items()}
    return ",".join(f"{_quoted(name)}:{text}" for name, text in sizes.items())


def run_plan(path: Path, feed: Tensors) -> Tensors:
    """Run a plan that has its model.onnx beside it. Return the outputs as FP32, which can hold the
    six digits that trtexec writes. Each call loads the plan again, which takes seconds. Raise
    BuildError if trtexec is missing or fails."""
    inputs, _ = onnx_reader.specs(onnx_reader.read(path.with_suffix(".onnx")))
    shapes = {spec.name: feed[spec.name].shape for spec in inputs if -1 in spec.shape}
    flags = [f"--loadEngine={path}", "--iterations=1", "--warmUp=0", "--duration=0"]
    if shapes:
        flags.append(f"--shapes={_shapes_as_text(shapes)}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = []
        for number, spec in enumerate(inputs):
            file = folder / f"{number}.bin"
            file.write_bytes(np.ascontiguousarray(feed[spec.name]).tobytes())
            files.append(f"{_quoted(spec.name)}:{file}")
        outputs = folder / "outputs"
        flags += [f"--loadInputs={','.join(files)}", f"--exportOutput={outputs}"]
        Trtexec.find().run(*flags)
        entries = json.loads(outputs.read_text(encoding="utf-8"))
    return {entry["name"]: _array(entry) for entry in entries}


def _array(entry: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return a tensor from an entry of the JSON that trtexec exported."""
    dimensions = entry["dimensions"]  # such as "1x3x224", or "" for a scalar
    shape = [int(size) for size in dimensions.split("x")] if dimensions else []
    return np.array(entry["values"], np.float32).reshape(shape)


def bound_to() -> dict[str, str]:
    """Return the GPU and the TensorRT version that a plan built on this machine is bound to, or {}
    if there is no GPU or no usable trtexec."""
    gpu = this_gpu()
    if not gpu:
        return {}
    try:
        return {"gpu": gpu.gpu, "tensorrt": Trtexec.find().version}
    except BuildError:
        return {}
