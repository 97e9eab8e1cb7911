"""What the ensembles have in common: folders of files, parts on the Python and DALI backends, the configuration.

An ensemble calls its parts by name, so all of them lie in one repository (or one archive). A part's name begins with
the ensemble's, except for models that are also served by themselves.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.errors import UsageError
from build_engines.model_folder.config import model_config, render
from build_engines.model_folder.files import check, load, publish, scratch_folder
from build_engines.model_folder.spec import ModelSpec
from build_engines.request import Request
from clients.base import TensorSpec

MODEL_FILES = Path(__file__).resolve().parent / "model_files"
MAX_BATCH_SIZE = 16
CACHE = "__pycache__"
Specs = tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Step:
    """One part of an ensemble: its tensors' names -> the ensemble's."""

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def write_model(folder: Path, files: Mapping[str, Path | str], loads: bool = False) -> bool:
    """Writes a model folder with these files (a path is copied) and version 1; False when an equal one is there.

    BuildError when `serve --check` would refuse it. `loads`: it is loaded, with what it calls, before it is in place.
    """
    contents = {name: file.read_bytes() if isinstance(file, Path) else file.encode() for name, file in files.items()}
    files_there = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != CACHE)
    found = {str(path.relative_to(folder)): path for path in files_there}
    if found.keys() == contents.keys() and all(found[name].read_bytes() == contents[name] for name in found):
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(folder.parent) as scratch:
        (scratch / "1").mkdir()
        for name, content in contents.items():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / name).write_bytes(content)
        check(scratch, folder.name)
        if loads:
            load(scratch, folder)
        shutil.rmtree(scratch / CACHE, ignore_errors=True)  # of the client, which `check` imports
        publish(scratch, folder)
    return True


def python_config(inputs: Specs, outputs: Specs, batch: int, parameters: Mapping[str, str]) -> str:
    """config.pbtxt of a part on Triton's Python backend, one instance on the processor."""
    config = _config(ModelSpec(inputs=inputs, outputs=outputs, max_batch_size=batch, settings=parameters, platform=""))
    config.backend = "python"
    return render(config)


def dali_config(inputs: Specs, outputs: Specs, batch: int) -> str:
    """config.pbtxt of a part on Triton's DALI backend, on the processor; its batches may mix lengths."""
    config = _config(ModelSpec(inputs=inputs, outputs=outputs, max_batch_size=batch, platform=""))
    config.backend = "dali"
    for tensor in config.input:
        tensor.allow_ragged_batch = True
    return render(config)


def ensemble_config(
    inputs: Specs, outputs: Specs, batch: int, steps: Sequence[Step], settings: Mapping[str, str] | None = None
) -> str:
    """Return the config.pbtxt of an ensemble, with the settings of its client."""
    spec = ModelSpec(inputs=inputs, outputs=outputs, max_batch_size=batch, platform="ensemble", settings=settings or {})
    config = _config(spec)
    config.ClearField("instance_group")
    config.ClearField("dynamic_batching")
    for step in steps:
        part = config.ensemble_scheduling.step.add(model_name=step.model, model_version=-1)
        part.input_map.update(step.inputs)
        part.output_map.update(step.outputs)
    return render(config)


def _config(model_spec: ModelSpec) -> Any:
    return model_config(model_spec, platform=model_spec.platform, kind="KIND_CPU", count=1, request=Request(""))


def batch_size(request: Request) -> int:
    """The largest batch of the ensemble and all its parts."""
    return MAX_BATCH_SIZE if request.max_batch_size < 1 else request.max_batch_size


def settings_of(request: Request, **defaults: str) -> dict[str, str]:
    """The defaults, changed by --set; UsageError for a name that has no default."""
    if unknown := sorted(set(request.settings) - set(defaults)):
        raise UsageError(f"--set {unknown[0]}: '{request.model}' has {', '.join(defaults)}")
    return defaults | dict(request.settings)


def files_of(folder: Path, pattern: str) -> dict[str, Path | str]:
    """The files of a model folder that match the pattern, by their names in it."""
    return {str(path.relative_to(folder)): path for path in sorted(folder.glob(pattern)) if path.is_file()}
