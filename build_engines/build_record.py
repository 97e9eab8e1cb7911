"""Reads and writes build.json, which records what a folder was built from, and finds the cache of
fp32 models and of TensorRT's timings."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from build_engines.model_spec import Engine

RECORD = "build.json"  # the request a folder was built from, and the digests of its files


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_files(folder: Path, files: Iterable[Path]) -> str:
    """Return the SHA-256 of a single file, or of the names and digests of several. The names are
    relative to `folder`."""
    digests = {str(file.relative_to(folder)): digest(file) for file in files}
    if len(digests) == 1:
        return next(iter(digests.values()))
    lines = "".join(f"{digests[name]} {name}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def digest_of_version(folder: Path) -> str:
    """Return the digest of all files in a version's folder: the model and, for example, its weights
    if they are in separate files."""
    return digest_of_files(folder, (file for file in folder.rglob("*") if file.is_file()))


def cache_folder() -> Path:
    """Return $BUILD_ENGINES_CACHE, or else triton-multi-model in the user's cache folder."""
    if folder := os.environ.get("BUILD_ENGINES_CACHE"):
        return Path(folder)
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches, "triton-multi-model")


def read_record(folder: Path) -> dict[str, Any]:
    """Return build.json's content, or {} if the file is missing or cannot be read."""
    try:
        return dict(json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def write_record(
    folder: Path, made_from: Mapping[str, Any], source_sha256: str, engine: Engine
) -> None:
    """Write build.json, with the digest of every file that is in the folder. `source_sha256` is the
    digest of the fp32 model."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    record = {
        "made_from": made_from,
        "source_sha256": source_sha256,
        "precision": engine.precision,
        "platform": engine.platform,
        "engine": dict(engine.bound_to),
        "files": {str(path.relative_to(folder)): digest(path) for path in files},
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def changed_files(folder: Path, record: Mapping[str, Any]) -> list[str]:
    """Return the names of the recorded files that are missing or have changed since the build."""
    changed = []
    for name, sha256 in record["files"].items():
        file = folder / name
        if not file.is_file() or digest(file) != sha256:
            changed.append(name)
    return changed


def reference_folder(source_sha256: str) -> Path:
    """Return the cache folder for the fp32 model with this SHA-256."""
    return cache_folder() / "references" / source_sha256
