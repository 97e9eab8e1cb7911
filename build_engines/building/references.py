"""The fp32 models that engines were made from, kept in the cache, for `verify`."""

import shutil
from pathlib import Path

from build_engines.model_folder.publish import publish, scratch_folder
from build_engines.weights.digests import digest
from build_engines.weights.downloads import cache_folder


def reference_folder(source: str) -> Path:
    """Where the fp32 model with that SHA-256 is kept."""
    return cache_folder() / "references" / source


def keep_reference(folder: Path) -> None:
    """Copies the folder's version 1, which is still in fp32."""
    target = reference_folder(digest(folder / "1" / "model.onnx"))
    if not target.is_dir():
        with scratch_folder(target.parent) as scratch:
            shutil.copytree(folder / "1", scratch, dirs_exist_ok=True)
            publish(scratch, target)
