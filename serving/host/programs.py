"""Programs that other software brings to this machine. Standard library only."""

import os
import shutil
from collections.abc import Mapping

TRTEXEC_FOLDERS = "/usr/src/tensorrt/bin:/opt/tensorrt/bin"  # of NVIDIA's images of TensorRT and of PyTorch


def find_trtexec(environ: Mapping[str, str]) -> str:
    """Its path: on PATH, or where NVIDIA's images have it; "" when there is none."""
    return shutil.which("trtexec", path=f"{environ.get('PATH', os.defpath)}:{TRTEXEC_FOLDERS}") or ""
