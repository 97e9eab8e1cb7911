"""Stands in for NVIDIA's programs that need a GPU: nvidia-smi, trtexec and Triton's TensorRT
backend."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from backends.install import install

HERE = Path(__file__).resolve().parent
GPU, DRIVER, CAPABILITY = "Stand-in T4", "550.54.15", "7.5"


class Nvidia:
    """Makes this machine look like one with a GPU, with programs on PATH. Start `serve` and other
    programs with `environ`. `code` is the version of TensorRT as NvInferVersion.h encodes it."""

    def __init__(self, folder: Path, gpu: str = GPU, code: int = 100800) -> None:
        self.folder = folder
        self.log = folder / "trtexec.log"
        folder.mkdir(parents=True)
        self._write_program(
            "nvidia-smi",
            f"""case "$*" in
            *name,driver_version,compute_cap*) echo "{gpu}, {DRIVER}, {CAPABILITY}";;
            *) echo "unknown query" >&2; exit 2;;
        esac""",
        )
        self._write_program("trtexec", f'exec {sys.executable} {HERE / "trtexec.py"} "$@"')
        self.environ = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "STAND_IN_TENSORRT": str(code),
            "STAND_IN_LOG": str(self.log),
        }

    def _write_program(self, name: str, text: str) -> None:
        """Write a shell script with these commands."""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def runs(self) -> list[dict[str, Any]]:
        """Return the options of each run of trtexec, and its pid."""
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]


def tensorrt_backend(folder: Path) -> Path:
    """Make a backend directory in which `tensorrt` is this project's ONNX Runtime backend, reading
    model.plan, because the plans of the stand-in trtexec are ONNX files."""
    install(folder)
    shutil.copytree(folder / "onnxruntime", folder / "tensorrt")
    for path in (folder / "tensorrt").rglob("*.py"):
        path.write_text(path.read_text().replace("model.onnx", "model.plan"))
    return folder
