"""trtexec, NVIDIA's program that builds a TensorRT plan from an ONNX file: its options by version, and a run of it.

Options are those of NVIDIA/TensorRT, samples/common/sampleOptions.cpp: `--workspace` up to 8.x, `--memPoolSize` from
8.4 on; `--buildOnly` up to 8.5, `--skipInference` from then on. What this one has is read from its --help.
"""

import re
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serving.host.machine import dying_with_us
from serving.repository.fingerprint import TRTEXEC_FOLDERS, Build, Fingerprint, Hardware
from serving.repository.layout import FINGERPRINT

HELP_SECONDS = 60.0  # its libraries are gigabytes, read from a cold disk
REPORT_SECONDS = 5.0
REMEMBERED, SHOWN = 200, 5  # lines of its output
CALIBRATION = "calibration.cache"  # beside the ONNX file, where the precision is int8
WHERE_TO_GET_IT = (
    "run this in NVIDIA's image, on the kind of GPU that serves: "
    "docker run --gpus all -v $PWD:/work -w /work nvcr.io/nvidia/tensorrt:YY.MM-py3 …, with the YY.MM of the "
    "tritonserver image"
)
_BANNER = re.compile(r"\[TensorRT v(\d+)\]")
_OPTION = re.compile(r"(?<![\w-])--([A-Za-z]\w*)")
_PREFIX = re.compile(r"^\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[[VIWEF]\] ")


class TrtexecError(Exception):
    """There is no plan; the message says why and what to do."""


@dataclass(frozen=True)
class Trtexec:
    """The program, its TensorRT's version as NvInferVersion.h packs it (100800), and the names of its options."""

    path: str
    code: int
    options: frozenset[str]

    @property
    def version(self) -> str:
        """8601 is 8.6.1, and from TensorRT 10 on 100800 is 10.8.0."""
        major, rest = divmod(self.code, 10_000 if self.code >= 100_000 else 1_000)
        return f"{major}.{rest // 100}.{rest % 100}"


def inspect(path: str) -> Trtexec:
    """Asks it for its options; raises TrtexecError where it does not run."""
    if not path:
        raise TrtexecError(f"there is no trtexec here, on PATH or in {TRTEXEC_FOLDERS}; {WHERE_TO_GET_IT}")
    try:
        done = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=HELP_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise TrtexecError(f"{path} --help: {err}") from err
    banner = _BANNER.search(done.stdout)
    if done.returncode or not banner:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise TrtexecError(f"{path} --help failed: {said[0] if said else f'status {done.returncode}'}")
    return Trtexec(path, int(banner[1]), frozenset(_OPTION.findall(done.stdout)))


def build(
    trtexec: Trtexec,
    fingerprint: Fingerprint,
    onnx: Path,
    plan: Path,
    timing: Path,
    say: Callable[[str], None],
    seconds: float,
) -> None:
    """Writes the plan and, beside it, its fingerprint; of a build that fails or is interrupted nothing stays.

    `timing` is the file that keeps what was measured of kernels. Raises TrtexecError, and OSError.
    """
    with tempfile.TemporaryDirectory(prefix=".plan-", dir=plan.parent) as folder:
        made, calibration = Path(folder) / plan.name, Path(folder) / CALIBRATION
        if fingerprint.build.calibration_sha256:
            _write_calibration(onnx.with_name(CALIBRATION), calibration, trtexec)
        run(command(trtexec, fingerprint.build, onnx, made, timing, calibration), say, seconds)
        if not made.is_file() or not made.stat().st_size:
            raise TrtexecError("trtexec succeeded and wrote no plan")
        fingerprint.write(Path(folder))
        plan.with_name(FINGERPRINT).unlink(missing_ok=True)  # no plan is ever beside the fingerprint of another
        made.replace(plan)
        (Path(folder) / FINGERPRINT).replace(plan.with_name(FINGERPRINT))


def timing_file(folder: Path, hardware: Hardware) -> Path:
    """Kernels' times hold for one GPU and one TensorRT."""
    return folder / (re.sub(r"[^A-Za-z0-9.]+", "-", f"timing-{hardware.gpu}-{hardware.tensorrt}") + ".cache")


def _write_calibration(source: Path, target: Path, trtexec: Trtexec) -> None:
    """With the first line that this TensorRT looks for; the ranges below it hold for any."""
    try:
        _, *ranges = source.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as err:
        raise TrtexecError(f"INT8 needs the calibration cache {source}: {err}") from err
    target.write_text("\n".join([f"TRT-{trtexec.code}-EntropyCalibration2", *ranges]) + "\n", encoding="utf-8")


def command(trtexec: Trtexec, build: Build, onnx: Path, plan: Path, timing: Path, calibration: Path) -> list[str]:
    """Its command line; raises TrtexecError for what this version cannot do."""
    has = trtexec.options.__contains__
    words = [f"--onnx={onnx}", f"--saveEngine={plan}"]
    words += ["--explicitBatch"] if int(trtexec.version.partition(".")[0]) < 8 else []  # later the only way
    words += [*_shapes(build), *_precision(trtexec, build.precision)]
    words += [f"--calib={calibration}"] if build.calibration_sha256 else []
    words += [f"--timingCacheFile={timing}"] if has("timingCacheFile") else []
    memory = "memPoolSize=workspace:" if has("memPoolSize") else "workspace="
    words.append(f"--{memory}{build.workspace_mb}")
    words += [f"--{name}" for name in ("skipInference", "buildOnly") if has(name)][:1]
    return [trtexec.path, *words]


def _precision(trtexec: Trtexec, precision: str) -> list[str]:
    """INT8 with fp16, so that a layer without an INT8 kernel does not fall back to fp32."""
    wanted = {"fp32": (), "fp16": ("fp16",), "int8": ("int8", "fp16")}[precision]
    if missing := [name for name in wanted if name not in trtexec.options]:
        raise TrtexecError(
            f"trtexec of TensorRT {trtexec.version} has no --{missing[0]}: it builds in the precision that the ONNX "
            "file has; use --precision fp32, or an image with TensorRT 10"
        )
    return [f"--{name}" for name in wanted]


def _shapes(build: Build) -> list[str]:
    """Three options --minShapes=NAME:1x3x224x224,…; none for a model of fixed shapes, for which trtexec takes none."""
    options: list[str] = []
    for number, kind in enumerate(("min", "opt", "max") if build.profile else ()):
        shapes = [f"{quoted(name)}:{'x'.join(map(str, each[number]))}" for name, each in build.profile.items()]
        options.append(f"--{kind}Shapes={','.join(shapes)}")
    return options


def quoted(name: str) -> str:
    """A tensor's name as trtexec takes it in a list."""
    return f"'{name}'" if set(name) & set(":,") else name


def run(words: list[str], say: Callable[[str], None], seconds: float) -> list[str]:
    """Its last lines; raises TrtexecError when it fails or takes longer. `say` is called with the last one every 5 s.

    The kernel kills it when this process ends, even by SIGKILL.
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
    """Its last errors, else its last lines."""
    errors = [line for line in lines if "[E]" in line] or [line for line in lines if not line.startswith("&&&&")]
    return " | ".join(_plain(line) for line in errors[-SHOWN:]) or "it said nothing"


def _plain(line: str) -> str:
    return _PREFIX.sub("", line)
