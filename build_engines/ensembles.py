"""What Triton's ensembles here have in common: folders of files, steps on the Python backend, the configuration.

An ensemble calls its parts by their names, so all of them lie in one repository (or one archive). The parts' names
begin with the ensemble's, but for models that are served by themselves too.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from build_engines.building import check, publish, scratch_folder
from build_engines.config import Serving, model_config, render
from build_engines.draft import Draft, UsageError
from build_engines.recipes import Request
from clients.base import TensorSpec
from serving.triton.config import datatype_name

STEPS = Path(__file__).resolve().parent / "steps"
MAX_BATCH_SIZE = 16
CACHE = "__pycache__"
Specs = tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Step:
    """One part of an ensemble: its tensors' names -> the ensemble's."""

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def write_model(folder: Path, files: Mapping[str, Path | str]) -> bool:
    """A model folder with these files (a path: its copy) and version 1; False when it is there already, equal.

    BuildError when `serve --check` would refuse it.
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
        check(scratch)
        shutil.rmtree(scratch / CACHE, ignore_errors=True)  # of the client, which `check` imports
        publish(scratch, folder)
    return True


def python_step(inputs: Specs, outputs: Specs, batch: int, parameters: Mapping[str, str]) -> str:
    """config.pbtxt of a step on Triton's Python backend, one instance on the processor."""
    config = _config(Draft("", inputs, outputs, batch, parameters, platform=""))
    config.backend = "python"
    return render(config)


def dali_step(inputs: Specs, outputs: Specs, batch: int) -> str:
    """config.pbtxt of a step on Triton's DALI backend, on the processor; samples of all lengths make a batch."""
    config = _config(Draft("", inputs, outputs, batch, platform=""))
    config.backend = "dali"
    for tensor in config.input:
        tensor.allow_ragged_batch = True
    return render(config)


def ensemble(inputs: Specs, outputs: Specs, batch: int, steps: Sequence[Step], parameters: Mapping[str, str]) -> str:
    """config.pbtxt of an ensemble; `parameters` are for its client."""
    config = _config(Draft("", inputs, outputs, batch, parameters, platform="ensemble"))
    config.ClearField("instance_group")
    config.ClearField("dynamic_batching")
    for step in steps:
        part = config.ensemble_scheduling.step.add(model_name=step.model, model_version=-1)
        part.input_map.update(step.inputs)
        part.output_map.update(step.outputs)
    return render(config)


def _config(draft: Draft) -> Any:
    return model_config(draft, draft.platform, "KIND_CPU", 1, Serving())


def chosen(request: Request, **defaults: str) -> dict[str, str]:
    """What --set says of these names; UsageError for another one."""
    if unknown := sorted(set(request.settings) - set(defaults)):
        raise UsageError(f"--set {unknown[0]}: '{request.model}' has {', '.join(defaults)}")
    return defaults | dict(request.settings)


def read_config(folder: Path) -> Any:
    """A model folder's config.pbtxt as a ModelConfig."""
    return text_format.Parse((folder / "config.pbtxt").read_text(encoding="utf-8"), model_config_pb2.ModelConfig())


def specs(tensors: Sequence[Any]) -> Specs:
    """A ModelConfig's inputs or outputs."""
    return tuple(TensorSpec(each.name, datatype_name(each.data_type), tuple(each.dims)) for each in tensors)


def parameters_of(config: Any) -> dict[str, str]:
    """A ModelConfig's `parameters`."""
    return {key: value.string_value for key, value in config.parameters.items()}


def copied(folder: Path, pattern: str) -> dict[str, Path | str]:
    """The files of a model folder that the pattern names, under their own names."""
    return {str(path.relative_to(folder)): path for path in sorted(folder.glob(pattern)) if path.is_file()}
