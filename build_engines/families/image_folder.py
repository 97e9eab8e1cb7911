"""Folders of transformers whose network takes one image -> model folders.

config.json and the image processor decide the client's settings. The build checks on some images
that the client prepares them like the processor. Modules that need torch or transformers are
imported late.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError, UsageError
from build_engines.families.onnx_file import with_tensors
from build_engines.families.text_folder import TO_TENSORS
from build_engines.model_folder import ModelSpec, write_labels
from build_engines.request import REPOSITORY, Request
from clients._input import keeps_ratio
from clients._labels import DEFAULT_LABELS

MAX_BATCH_SIZE = 32
EXAMPLE = REPOSITORY / "efficientnet/example.jpg"
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
IN_NETWORK = ("scale", "mean", "std")  # the client's settings that the network has
ENCODER = "Model"
CLIENTS = {  # by the end of the architecture's name in config.json
    "ForImageClassification": "resnet",
    "ForSemanticSegmentation": "semantic_segmentation",
    "ForObjectDetection": "detr",
    "VisionModelWithProjection": "image_embedding",
    ENCODER: "image_embedding",
}
LABELLED = {"resnet", "semantic_segmentation", "detr"}
OTHERS = {
    "ForMaskedImageModeling": "its encoder can be exported to ONNX and built without --client"
}


def is_image(checkpoint: Path) -> bool:
    """Return whether the folder's network takes images."""
    return any((checkpoint / name).is_file() for name in PROCESSORS)


def export(request: Request, path: Path | None, folder: Path) -> ModelSpec:
    """Write the model folder's files. Raise BuildError if the checkpoint is of another network, or
    not complete."""
    if path is None or not path.is_dir():
        raise BuildError(
            f"{path} is neither a folder as save_pretrained writes it nor an ONNX file"
        )
    config, client = check_architecture(path, request.client)
    if not is_image(path):
        raise BuildError(
            f"{path} has no preprocessor_config.json: it does not say how images are prepared"
        )
    if request.size:
        raise BuildError("--size is not for a folder of transformers: its files say the size")
    from build_engines.families import image_network  # needs torch

    settings = image_network.write_onnx(path, client, request, folder / "1" / "model.onnx")
    activation = activation_of(config) if client == "resnet" else "softmax"
    settings |= {"activation": activation} if activation != "softmax" else {}
    if client in LABELLED:
        write_labels(folder / DEFAULT_LABELS, labels_of(config), request.labels)
    elif request.labels:
        raise UsageError(f"--labels {request.labels}: an encoder has no classes")
    shutil.copyfile(EXAMPLE, folder / EXAMPLE.name)
    model_spec = ModelSpec(
        client=client,
        max_batch_size=MAX_BATCH_SIZE,
        settings={name: value for name, value in settings.items() if name not in IN_NETWORK},
        labels=DEFAULT_LABELS if client == "resnet" and (folder / DEFAULT_LABELS).is_file() else "",
    )
    asked = {**settings, **request.settings}
    if keeps_ratio(asked):
        shorter, longer = map(int, asked["resize_to"].split(","))
        model_spec = replace(model_spec, max_batch_size=1, lengths=(1, shorter, longer))
    return with_tensors(request, folder, model_spec)


def check_architecture(checkpoint: Path, asked: str) -> tuple[Mapping[str, Any], str]:
    """Return config.json, and the client of the network that it names. Raise BuildError if no
    client serves it, or if another client is asked for."""
    config: Mapping[str, Any] = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    name = str((config.get("architectures") or [config.get("model_type", "network of no name")])[0])
    image = is_image(checkpoint)  # many a network is called …Model
    client = next(
        (each for end, each in CLIENTS.items() if name.endswith(end) and (image or end != ENCODER)),
        "",
    )
    if not client or asked not in ("", client):
        remedy = next((text for end, text in OTHERS.items() if end in name), TO_TENSORS)
        remedy = (
            remedy
            if config.get("architectures")
            else 'add "architectures" to it: ["ViTForImageClassification"]'
        )
        remedy = f"without --client it becomes a model of the client {client}" if client else remedy
        known = ", ".join(f"…{end}" for end, each in CLIENTS.items() if asked in ("", each))
        raise BuildError(
            f"{checkpoint} holds a {name} by its config.json, and this builds networks "
            f"named {known}; {remedy}"
        )
    return config, client


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the labels, None if transformers made up their names."""
    names = {int(key): str(value) for key, value in (config.get("id2label") or {}).items()}
    labels = tuple(names[index] for index in sorted(names))
    return () if "LABEL_0" in labels else labels


def activation_of(config: Mapping[str, Any]) -> str:
    """Return the function by which transformers' pipeline turns logits into scores."""
    kind = config.get("problem_type")
    if kind == "regression":
        return "none"
    count = len(config.get("id2label") or (0, 1))
    return "sigmoid" if kind == "multi_label_classification" or count == 1 else "softmax"
