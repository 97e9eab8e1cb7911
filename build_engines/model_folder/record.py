"""build.json: what a model's folder was made from, and its files as they were made."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build_engines.model_folder.spec import Engine
from build_engines.weights.digests import digest

RECORD = "build.json"


def read_record(folder: Path) -> dict[str, Any]:
    """build.json; empty where there is none."""
    try:
        return dict(json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def save_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Writes build.json."""
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def write_record(folder: Path, made_from: Mapping[str, Any], source: str, engine: Engine) -> None:
    """Records the finished folder; `source` is the SHA-256 of the fp32 model."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    save_record(
        folder,
        {
            "made_from": made_from,
            "source_sha256": source,
            "precision": engine.precision,
            "platform": engine.platform,
            "engine": dict(engine.facts),
            "files": {name: digest(folder / name) for name in names},
        },
    )


def changed_files(folder: Path, record: Mapping[str, Any]) -> list[str]:
    """The files that are missing or are not as they were made."""
    files = record["files"].items()
    return [name for name, sha in files if not (folder / name).is_file() or digest(folder / name) != sha]
