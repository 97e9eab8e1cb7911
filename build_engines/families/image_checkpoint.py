"""Builds models from folders that the transformers library saved, if their network takes one image.

The client's settings follow from config.json and the image processor. The build checks on sample
images that the client prepares them as the image processor does. Modules that need torch or
transformers are imported only when they are used.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError, UsageError
from build_engines.families import own_onnx, own_torchscript
from build_engines.families.bundled import copy_example
from build_engines.families.family import Family, Writer
from build_engines.labels import write_labels
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from build_engines.weights import CHECKPOINT, ONNX_FILE, TORCHSCRIPT_FILE, Weights
from clients._image_settings import keeps_ratio
from clients._labels import DEFAULT_LABELS

MAX_BATCH_SIZE = 32
# settings that the client does not get, because the exported network itself applies them
IN_NETWORK = ("scale", "mean", "std")


def write_model(family: Family, weights: Weights, request: Request, folder: Path) -> ModelSpec:
    """Write the model folder's files, and return the ModelSpec. Raise UsageError for --labels if
    the network has no classes, BuildError for --size, and any error of image_network.write_onnx.
    """
    if request.size:
        raise BuildError("--size is not for a folder of transformers: its files say the size")
    from build_engines.families import image_network  # needs torch

    settings = image_network.write_onnx(weights, family, request, folder / "1" / "model.onnx")
    activation = activation_of(weights.config)
    if family.classifies and activation != "softmax":  # the client's default
        settings["activation"] = activation
    has_labels = False
    if family.head and family.head.labelled:
        has_labels = write_labels(
            folder / DEFAULT_LABELS, labels_of(weights.config), request.labels
        )
    elif request.labels:
        raise UsageError(f"--labels {request.labels}: the network has no classes")
    model_spec = ModelSpec(
        max_batch_size=MAX_BATCH_SIZE,
        settings={name: value for name, value in settings.items() if name not in IN_NETWORK},
        labels=DEFAULT_LABELS if has_labels and family.classifies else "",
    )
    final_settings = {**settings, **request.settings}
    # images that keep their proportions differ in size, so they cannot be batched
    if keeps_ratio(final_settings):
        shorter, longer = map(int, final_settings["resize_to"].split(","))
        model_spec = replace(model_spec, max_batch_size=1, lengths=(1, shorter, longer))
    copy_example(family.example, folder)
    return model_spec


# the writers of the families that build image networks from the transformers library
WRITERS: dict[str, Writer] = {
    ONNX_FILE: own_onnx.write_model,
    TORCHSCRIPT_FILE: own_torchscript.write_model,
    CHECKPOINT: write_model,
}


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the labels in config.json, or () if it has none, or only transformers' placeholders
    (LABEL_0 …)."""
    names = config.get("id2label") or {}
    labels = tuple(str(names[key]) for key in sorted(names, key=int))
    return () if "LABEL_0" in labels else labels


def activation_of(config: Mapping[str, Any]) -> str:
    """Return the name of the function with which transformers' pipeline turns logits into scores:
    "softmax", "sigmoid" or "none"."""
    problem = config.get("problem_type")
    if problem == "regression":
        return "none"
    count = len(config.get("id2label") or (0, 1))  # by default, transformers has two labels
    if problem == "multi_label_classification" or count == 1:
        return "sigmoid"
    return "softmax"
