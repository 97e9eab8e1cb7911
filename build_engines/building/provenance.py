"""What a build is made from, and whether the same build was done already."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from build_engines.model_folder.record import changed_files, read_record
from build_engines.request import Request
from build_engines.weights import sources


def made_from(request: Request, weights: Path | None, bound_to: Mapping[str, str]) -> dict[str, Any]:
    """All that decides what a build makes, without the paths of this machine.

    `bound_to` is what of the machine the engine depends on.
    """
    asked = asdict(request)
    for place in ("repository", "name", "calibration", "labels", "tokenizer"):
        asked.pop(place)
    asked["weights"] = request.source if weights is None or not weights.exists() or _is_hub(request) else weights.name
    files = {"weights": weights, "labels": request.labels, "tokenizer": request.tokenizer}
    asked["sha256"] = {name: sources.identity(file) for name, file in files.items() if file and file.exists()}
    asked["calibration"] = request.calibration.name if request.calibration else ""
    if bound_to:
        asked["bound_to"] = dict(bound_to)
    return json.loads(json.dumps(asked))  # type: ignore[no-any-return]  # tuples as lists, as they are read back


def _is_hub(request: Request) -> bool:
    return bool(sources.HUB_ID.fullmatch(request.source)) and not Path(request.source).exists()


def up_to_date(request: Request, asked: Mapping[str, Any]) -> Path | None:
    """The folder with the same build whose files have not changed; None if there is none."""
    names = [request.name] if request.name else [request.model, *(f"{request.model}_{p}" for p in ("int8", "fp16"))]
    for folder in (request.repository / name for name in names):
        record = read_record(folder)
        if record and record["made_from"] == asked and not changed_files(folder, record):
            return folder
    return None
