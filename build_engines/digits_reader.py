"""A chain of two models in the front, as one: a detector finds, a classifier is asked about each piece that is cut out.

The folder is an ensemble whose one part is the detector, with the detector's client; its parameter `then` names the
classifier. --set detector=NAME and --set classifier=NAME take other models of the repository.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from build_engines import building
from build_engines.draft import BuildError
from build_engines.ensembles import Step, copied, ensemble, parameters_of, read_config, specs, write_model
from build_engines.recipes import RECIPES, Request

PARTS = {"detector": "yolov5", "classifier": "resnet"}
MARGIN = "0.2"  # of a digit's box: the classifier was trained on digits with paper around them


def build(request: Request, force: bool = False) -> tuple[Path, bool]:
    """The chain's folder, and whether anything had to be made; BuildError."""
    chosen = {part: request.settings.get(part, name) for part, name in PARTS.items()}
    made = [_part(request, name, force) for name in chosen.values()]
    detector = request.repository / chosen["detector"]
    config = read_config(detector)
    tensors = [{tensor.name: tensor.name for tensor in side} for side in (config.input, config.output)]
    settings = parameters_of(config) | {"margin": MARGIN} | _own(request.settings) | {"then": chosen["classifier"]}
    text = ensemble(
        specs(config.input), specs(config.output), config.max_batch_size, [Step(detector.name, *tensors)], settings
    )
    files = {"config.pbtxt": text, **copied(detector, "*.txt"), **copied(detector, "example.*")}
    folder = request.repository / (request.name or request.model)
    return folder, any([write_model(folder, files), *made])


def _own(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name not in PARTS}


def _part(request: Request, name: str, force: bool) -> bool:
    """Whether the model had to be built: one that is there is taken as it is."""
    if (request.repository / name / "config.pbtxt").is_file():
        return False
    if name not in RECIPES:
        raise BuildError(f"there is no model '{name}' in {request.repository}: build it first")
    _, made = building.build(replace(request, model=name, name=name, weights="", settings={}), force)
    return made
