"""What a TensorRT plan was built with and for, and whether it fits this machine. Standard library only.

A plan runs on the TensorRT version and the GPU model that it was built with, and on no other (NVIDIA TensorRT
documentation, "Engine Compatibility"). The driver and CUDA are noted for people and decide nothing. The fingerprint
lies beside the plan as fingerprint.json.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from serving.repository.layout import FINGERPRINT

WORKSPACE_MB = 4096
SMI_SECONDS = 20.0  # a driver that is being loaded makes nvidia-smi wait
SMI_FIELDS = "name,driver_version,compute_cap"
SMI_OLD_FIELDS = "name,driver_version"  # drivers before 510 have no compute_cap
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu:/usr/local/tensorrt/lib:/opt/tensorrt/lib:"
    "/usr/local/lib:/usr/lib64"
)
TRTEXEC_FOLDERS = "/usr/src/tensorrt/bin:/opt/tensorrt/bin"  # of NVIDIA's images of TensorRT and of PyTorch
_LIBRARY = re.compile(r"libnvinfer\.so\.(\d+\.\d+\.\d+)")

Profile = Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


@dataclass(frozen=True)
class Hardware:
    """A GPU and the software on it; "" for what could not be told. Versions as "10.8.0", the capability as "7.5"."""

    gpu: str
    compute_capability: str = ""
    tensorrt: str = ""
    cuda: str = ""
    driver: str = ""

    def __str__(self) -> str:
        return f"{self.gpu}, TensorRT {self.tensorrt or '(unknown)'}"


@dataclass(frozen=True)
class Build:
    """What is built: from which ONNX file, in which precision (fp32, fp16, int8), for which shapes.

    `profile` has the least, the usual and the largest shape of each input that varies, by name, with the batch
    dimension; `calibration_sha256` is that of INT8's calibration cache.
    """

    source_sha256: str
    precision: str = "fp32"
    profile: Profile = field(default_factory=dict)
    calibration_sha256: str = ""
    workspace_mb: int = WORKSPACE_MB


@dataclass(frozen=True)
class Fingerprint:
    """A plan's."""

    hardware: Hardware
    build: Build

    def key(self) -> str:
        """The name of the plan in a cache: equal for plans that can stand for each other."""
        known = asdict(self.build) | {name: getattr(self.hardware, name) for name in ("gpu", "tensorrt")}
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]

    def write(self, folder: Path) -> None:
        profile = {name: ["x".join(map(str, shape)) for shape in shapes] for name, shapes in self.build.profile.items()}
        text = json.dumps(asdict(self.hardware) | asdict(self.build) | {"profile": profile}, indent=2)
        (folder / FINGERPRINT).write_text(text + "\n", encoding="utf-8")

    def differences(self, here: Hardware, source_sha256: str) -> Iterator[str]:
        """Why the plan does not fit; what is unknown on one side is not compared."""
        built = self.hardware
        if _differ(built.gpu, here.gpu):
            yield f"it was built for {built.gpu} and this is {here.gpu}"
        elif _differ(built.compute_capability, here.compute_capability):
            yield (
                f"it was built for compute capability {built.compute_capability} and this GPU has "
                f"{here.compute_capability}"
            )
        if _differ(built.tensorrt, here.tensorrt):
            yield f"it was built with TensorRT {built.tensorrt} and this is TensorRT {here.tensorrt}"
        if _differ(self.build.source_sha256, source_sha256):
            yield "it was built from another ONNX file than the one beside it"


def read(folder: Path) -> Fingerprint | None:
    """That of the plan in this folder; None where there is none that can be read."""
    try:
        found = json.loads((folder / FINGERPRINT).read_text(encoding="utf-8"))
        hardware = Hardware(**{name: str(found.pop(name, "")) for name in Hardware.__dataclass_fields__})
        return Fingerprint(hardware, Build(**found | {"profile": _profile(found["profile"])}))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def source_sha256(onnx: Path) -> str:
    """That of the ONNX file, followed by what lies in files of its own beside it (model.onnx.data); "" without one."""
    if not onnx.is_file():
        return ""
    digest = hashlib.sha256()
    for path in (onnx, *sorted(onnx.parent.glob(f"{onnx.name}?data*"))):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def this_hardware(environ: Mapping[str, str] | None = None) -> Hardware | None:
    """The first GPU of this machine or container; None where nvidia-smi is missing or knows of none."""
    environ = os.environ if environ is None else environ
    row = _ask_smi(SMI_FIELDS, environ) or _ask_smi(SMI_OLD_FIELDS, environ)
    if not row:
        return None
    name, driver, *capability = row
    return Hardware(name, "".join(capability), tensorrt_version(environ), environ.get("CUDA_VERSION", ""), driver)


def tensorrt_version(environ: Mapping[str, str]) -> str:
    """By the name of the library that Triton's backend loads, which is too large to be loaded for this; "" without."""
    folders = f"{environ.get('LD_LIBRARY_PATH', '')}:{LIBRARY_FOLDERS}".split(":")
    for folder in map(Path, filter(None, folders)):
        names = (_LIBRARY.fullmatch(path.name) for path in sorted(folder.glob("libnvinfer.so.*"), reverse=True))
        if version := next((match[1] for match in names if match), ""):
            return version
    return ""


def find_trtexec(environ: Mapping[str, str]) -> str:
    """Its path: on PATH, or where NVIDIA's images have it; "" when there is none."""
    return shutil.which("trtexec", path=f"{environ.get('PATH', os.defpath)}:{TRTEXEC_FOLDERS}") or ""


def _ask_smi(fields: str, environ: Mapping[str, str]) -> list[str]:
    """The first GPU's values; [] where they cannot be had."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if not program:
        return []
    command = [program, f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, timeout=SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.splitlines()
    values = [value.strip() for value in lines[0].split(",")] if lines else []
    return values if done.returncode == 0 and len(values) == len(fields.split(",")) else []


def _differ(built: str, here: str) -> bool:
    return bool(built and here and built != here)


def _profile(found: Mapping[str, Any]) -> Profile:
    """Of {"images": ["1x3x640x640", …]}."""
    return {name: (_shape(least), _shape(usual), _shape(most)) for name, (least, usual, most) in found.items()}


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split("x") if size)
