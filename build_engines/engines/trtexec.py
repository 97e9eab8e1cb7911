"""Run trtexec, NVIDIA's program that builds a TensorRT plan from an ONNX file, and ask which GPU it builds for.

The options differ by version (NVIDIA/TensorRT, samples/common/sampleOptions.cpp): `--workspace` up to 8.x,
`--memPoolSize` from 8.4 on; `--buildOnly` up to 8.5, `--skipInference` from then on. `trtexec --help` lists them.
"""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from build_engines.errors import BuildError
from build_engines.weights import onnx_files
from clients.base import Tensors, TensorSpec
from serving.host.processes import dying_with_us

FOLDERS = "/usr/src/tensorrt/bin:/opt/tensorrt/bin"  # where NVIDIA's images of TensorRT and of PyTorch have it
HELP_SECONDS = 60.0  # its libraries are gigabytes, read from a cold disk
SMI_SECONDS = 20.0  # nvidia-smi waits while a driver is being loaded
SMI_FIELDS = ("name", "driver_version", "compute_cap")
WORKSPACE_MB = 4096
REPORT_SECONDS = 5.0
REMEMBERED, SHOWN = 200, 5  # lines of output
WHERE_TO_GET_IT = (
    "run this in NVIDIA's image, on the kind of GPU that serves: "
    "docker run --gpus all -v $PWD:/work -w /work nvcr.io/nvidia/tensorrt:YY.MM-py3 …, with the YY.MM of the "
    "tritonserver image"
)
PLAN_SECONDS = 300.0  # to load a plan of gigabytes and run it
_MEDIAN = re.compile(r"GPU Compute Time:.*\bmedian = ([0-9.]+) ms")
_BANNER = re.compile(r"\[TensorRT v(\d+)\]")
_OPTION = re.compile(r"(?<![\w-])--([A-Za-z]\w*)")
_PREFIX = re.compile(r"^\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[[VIWEF]\] ")

Profile = Mapping[str, tuple[tuple[int, ...], ...]]  # least, usual, largest shape


class TrtexecError(Exception):
    """No plan could be built or run; the message says why and what to do."""


@dataclass(frozen=True)
class Trtexec:
    """The program's path, its TensorRT version as NvInferVersion.h packs it (100800), and the names of its options."""

    path: str
    code: int
    options: frozenset[str]

    @property
    def version(self) -> str:
        """Return the version with dots: 8601 is 8.6.1, and from TensorRT 10 on 100800 is 10.8.0."""
        major, rest = divmod(self.code, 10_000 if self.code >= 100_000 else 1_000)
        return f"{major}.{rest // 100}.{rest % 100}"


@dataclass(frozen=True)
class Gpu:
    """The first GPU of this machine, as nvidia-smi names it."""

    name: str
    driver: str
    compute_capability: str


def this_gpu() -> Gpu | None:
    """Return None if nvidia-smi is missing or fails."""
    command = ["nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    values = [value.strip() for value in done.stdout.partition("\n")[0].split(",")]
    return Gpu(*values) if done.returncode == 0 and len(values) == len(SMI_FIELDS) else None


def find_trtexec() -> str:
    """Return its path, on PATH or in the folders of NVIDIA's images; "" if there is none."""
    return shutil.which("trtexec", path=f"{os.environ.get('PATH', os.defpath)}:{FOLDERS}") or ""


def inspect() -> Trtexec:
    """Find trtexec and ask it for its version and options; raise TrtexecError if it is missing or does not run."""
    path = find_trtexec()
    if not path:
        raise TrtexecError(f"there is no trtexec here, on PATH or in {FOLDERS}; {WHERE_TO_GET_IT}")
    try:
        done = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=HELP_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise TrtexecError(f"{path} --help: {err}") from err
    banner = _BANNER.search(done.stdout)
    if done.returncode or not banner:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise TrtexecError(f"{path} --help failed: {said[0] if said else f'status {done.returncode}'}")
    return Trtexec(path, int(banner[1]), frozenset(_OPTION.findall(done.stdout)))


@dataclass(frozen=True)
class Build:
    """What to build: `precision` is fp32, fp16 or int8; `profile` has the shapes of each input that varies, by name,
    batch dimension included; `calibration` is INT8's cache; `timing` keeps the measured times of kernels."""

    onnx: Path
    precision: str
    profile: Profile
    timing: Path
    calibration: Path | None = None


def build(trtexec: Trtexec, wanted: Build, plan: Path, say: Callable[[str], None]) -> None:
    """Write the plan; leave nothing if the build fails or is interrupted. Raise TrtexecError or OSError."""
    with tempfile.TemporaryDirectory(prefix=".plan-", dir=plan.parent) as folder:
        made = Path(folder) / plan.name
        run(command(trtexec, wanted, made), say)
        if not made.is_file() or not made.stat().st_size:
            raise TrtexecError("trtexec succeeded but wrote no plan")
        made.replace(plan)


def command(trtexec: Trtexec, wanted: Build, plan: Path) -> list[str]:
    """Return the command line; raise TrtexecError if this version cannot build in that precision."""
    has = trtexec.options.__contains__
    words = [f"--onnx={wanted.onnx}", f"--saveEngine={plan}"]
    words += ["--explicitBatch"] if int(trtexec.version.partition(".")[0]) < 8 else []  # later the only way
    words += [*_shapes(wanted.profile), *_precision(trtexec, wanted.precision)]
    words += [f"--calib={wanted.calibration}"] if wanted.calibration else []
    words += [f"--timingCacheFile={wanted.timing}"] if has("timingCacheFile") else []
    words.append(f"--{'memPoolSize=workspace:' if has('memPoolSize') else 'workspace='}{WORKSPACE_MB}")
    words += [f"--{name}" for name in ("skipInference", "buildOnly") if has(name)][:1]
    return [trtexec.path, *words]


def _precision(trtexec: Trtexec, precision: str) -> list[str]:
    """INT8 comes with fp16, so that a layer without an INT8 kernel does not fall back to fp32."""
    wanted = {"fp32": (), "fp16": ("fp16",), "int8": ("int8", "fp16")}[precision]
    if missing := [name for name in wanted if name not in trtexec.options]:
        raise TrtexecError(
            f"trtexec of TensorRT {trtexec.version} has no --{missing[0]}: it builds in the precision that the ONNX "
            "file has; use --precision fp32, or an image with TensorRT 10"
        )
    return [f"--{name}" for name in wanted]


def _shapes(profile: Profile) -> list[str]:
    """Return three options --minShapes=NAME:1x3x224x224,…; none for a model of fixed shapes, as trtexec wants it."""
    options: list[str] = []
    for number, kind in enumerate(("min", "opt", "max") if profile else ()):
        shapes = [f"{quoted(name)}:{'x'.join(map(str, each[number]))}" for name, each in profile.items()]
        options.append(f"--{kind}Shapes={','.join(shapes)}")
    return options


def quoted(name: str) -> str:
    """Return a tensor's name as trtexec takes it in a list."""
    return f"'{name}'" if set(name) & set(":,") else name


def run(words: list[str], say: Callable[[str], None], seconds: float = math.inf) -> list[str]:
    """Return trtexec's last lines; raise TrtexecError if it fails or takes longer than `seconds`.

    Every 5 s `say` is called with its last line. The kernel kills it when this process ends, even by SIGKILL.
    """
    lines: deque[str] = deque(maxlen=REMEMBERED)
    process = subprocess.Popen(
        (*dying_with_us("KILL"), *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    output = (line.rstrip() for line in process.stdout or () if line.strip())
    reader = threading.Thread(target=lines.extend, args=(output,), daemon=True)
    reader.start()
    try:
        _wait(process, lines, say, seconds)
    finally:
        process.kill()
        process.wait()
        reader.join(REPORT_SECONDS)
    if process.returncode:
        code = process.returncode
        how = f"status {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
        raise TrtexecError(f"trtexec failed ({how}): {_last_words(lines)}")
    return list(lines)


def _wait(process: "subprocess.Popen[str]", lines: deque[str], say: Callable[[str], None], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            process.wait(min(REPORT_SECONDS, left))
            return
        except subprocess.TimeoutExpired:
            say(_plain(lines[-1]) if lines else "")
    raise TrtexecError(f"trtexec was stopped after {seconds:.0f} s")


def _last_words(lines: deque[str]) -> str:
    """Return its last errors, or its last lines if it printed no error."""
    errors = [line for line in lines if "[E]" in line] or [line for line in lines if not line.startswith("&&&&")]
    return " | ".join(_plain(line) for line in errors[-SHOWN:]) or "it said nothing"


def _plain(line: str) -> str:
    return _PREFIX.sub("", line)


def run_plan(path: Path, feed: Tensors) -> Tensors:
    """Return the plan's outputs, with six digits; BuildError if it cannot be run here.

    trtexec loads the plan again for each call, which takes seconds.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder, feed = Path(scratch), _inputs(path, feed)
        files = {name: folder / f"{number}.bin" for number, name in enumerate(feed)}
        for name, array in feed.items():
            files[name].write_bytes(np.ascontiguousarray(array).tobytes())
        outputs = folder / "outputs.json"
        inputs = ",".join(f"{quoted(name)}:{file}" for name, file in files.items())
        once = ["--iterations=1", "--warmUp=0", "--duration=0"]
        _run_plan(path, feed, [f"--loadInputs={inputs}", f"--exportOutput={outputs}", *once])
        return {entry["name"]: _array(entry) for entry in json.loads(outputs.read_text(encoding="utf-8"))}


def plan_latency(path: Path, feed: Tensors) -> float:
    """Return the median milliseconds of a run on the GPU, without the copies to and from it."""
    said = _run_plan(path, feed, [])
    found = _MEDIAN.search("\n".join(said))
    if not found:
        raise BuildError("trtexec did not say how long a run takes")
    return float(found[1])


def _run_plan(path: Path, feed: Tensors, words: list[str]) -> list[str]:
    try:
        program = inspect()
        shapes = [f"--shapes={text}"] if (text := _shapes_of(path, feed)) else []
        return run([program.path, f"--loadEngine={path}", *shapes, *words], lambda _: None, PLAN_SECONDS)
    except TrtexecError as err:
        raise BuildError(str(err)) from err


def _shapes_of(path: Path, feed: Tensors) -> str:
    """Return the shapes of the inputs that vary in the ONNX file beside the plan; of all inputs without one."""
    varying = {spec.name for spec in _specs(path) if -1 in spec.shape} if _specs(path) else set(feed)
    named = {name: "x".join(map(str, array.shape)) for name, array in feed.items() if name in varying}
    return ",".join(f"{quoted(name)}:{shape}" for name, shape in named.items())


def _inputs(path: Path, feed: Tensors) -> Tensors:
    """Return the feed without tensors that the model does not take: trtexec refuses those."""
    names = {spec.name for spec in _specs(path)} or set(feed)
    return {name: array for name, array in feed.items() if name in names}


def _specs(path: Path) -> tuple[TensorSpec, ...]:
    """Return the inputs of the ONNX file beside the plan; none without one."""
    onnx = path.with_suffix(".onnx")
    return tuple(onnx_files.specs(onnx_files.read(onnx))[0]) if onnx.is_file() else ()


def _array(entry: dict[str, Any]) -> Any:
    shape = [int(size) for size in entry["dimensions"].split("x") if size]
    return np.array(entry["values"], np.float32).reshape(shape)
