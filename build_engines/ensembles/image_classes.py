"""Encoded image in, scores of classes out, inside Triton: decoding (DALI, or Python) -> a classifier.

    INPUT UINT8 [n, bytes] -> pixels [n, 3, size, size] or [n, size, size, 3] -> OUTPUT FP32 [n, classes]

--weights takes an ONNX file of one square RGB image; without it the classifier is the bundled `efficientnet`. --set
takes decoder=dali to decode on DALI everywhere, python nowhere, auto (the default) on GPU machines; mean and std of
pixels from 0 to 255, for a network that takes FP32; and the client's activation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from build_engines.build import build as build_model
from build_engines.ensembles.parts import (
    MODEL_FILES,
    Step,
    batch_size,
    dali_config,
    ensemble_config,
    files_of,
    python_config,
    settings_of,
    write_model,
)
from build_engines.errors import BuildError, UsageError
from build_engines.model_folder.config import read_config, specs
from build_engines.request import Request
from build_engines.weights import onnx_files, sources
from clients.base import TensorSpec

CLASSIFIER = "efficientnet"  # the recipe of the default
ENCODED, PIXELS = "DALI_INPUT_0", "DALI_OUTPUT_0"
DECODERS = ("auto", "dali", "python")
DTYPES = {"FP32": "FLOAT", "UINT8": "UINT8"}  # of the network's input: DALI's


@dataclass(frozen=True)
class Network:
    """The classifier in the repository: its folder, its input and output, and the input's size and layout."""

    folder: Path
    pixels: TensorSpec
    scores: TensorSpec
    size: int
    layout: str


def build(request: Request, force: bool = False) -> tuple[Path, bool]:
    """Return the ensemble's folder, and whether anything had to be made; raise BuildError."""
    name, batch = request.name or request.model, batch_size(request)
    settings = settings_of(request, decoder=DECODERS[0], mean="0", std="1", activation="softmax")
    if settings["decoder"] not in DECODERS:
        raise UsageError(f"--set decoder={settings['decoder']}: it is one of {', '.join(DECODERS)}")
    part = f"{name}_classifier"
    model = part if request.weights else CLASSIFIER
    folder, made = build_model(replace(request, model=model, name=part, max_batch_size=batch, settings={}), force)
    network = _read_network(folder)
    weights = sources.find(request)
    is_onnx = weights is not None and sources.kind(weights) == "onnx"
    has_scores = weights and is_onnx and onnx_files.squashed_by(onnx_files.read(weights), network.scores.name)
    activation = request.settings.get("activation", "none" if has_scores else "softmax")
    written = (
        _write_decoder(request.repository / f"{name}_decoder", network, batch, settings),
        _write_ensemble(request, network, batch, activation),
    )
    return request.repository / name, made or any(written)


def _read_network(folder: Path) -> Network:
    """Return the classifier; BuildError unless it takes batches of one square RGB image and returns [n, classes]."""
    config = read_config(folder)
    inputs, outputs = specs(config.input), specs(config.output)
    if len(inputs) == len(outputs) == 1 and len(inputs[0].shape) == 3 and len(outputs[0].shape) == 1:
        (pixels,), (scores,) = inputs, outputs
        for layout, size, shape in (
            ("CHW", pixels.shape[2], (3, pixels.shape[2], pixels.shape[2])),
            ("HWC", pixels.shape[0], (pixels.shape[0], pixels.shape[0], 3)),
        ):
            if pixels.shape == shape and size > 0 and config.max_batch_size and pixels.datatype in DTYPES:
                return Network(folder, pixels, scores, size, layout)
    found = "; ".join(f"{spec.name} {spec.datatype} {list(spec.shape)}" for spec in (*inputs, *outputs))
    raise BuildError(
        f"the network is not a classifier for batches: its tensors are {found}; it takes one image, FP32 or UINT8 "
        "[N, 3, SIZE, SIZE] or [N, SIZE, SIZE, 3], and gives [N, classes]"
    )


def _write_decoder(folder: Path, network: Network, batch: int, settings: Mapping[str, str]) -> bool:
    """Write one folder for both decoders: config.pbtxt is for GPU machines, configs/cpu.pbtxt for others."""
    inputs = (TensorSpec(ENCODED, "UINT8", (-1,)),)
    outputs = (replace(network.pixels, name=PIXELS),)
    mean, std = settings["mean"], settings["std"]
    parameters = {"size": str(network.size), "mean": mean, "std": std, "layout": network.layout}
    python = python_config(inputs, outputs, batch, parameters)
    dali = dali_config(inputs, outputs, batch)
    source = (MODEL_FILES / "dali.py").read_text(encoding="utf-8")
    source = source.replace("SIZE = 224", f"SIZE = {network.size}").replace('"CHW"', f'"{network.layout}"')
    source = source.replace("MEAN, STD = 0, 1", f"MEAN, STD = {float(mean)}, {float(std)}")
    source = source.replace("types.FLOAT", f"types.{DTYPES[network.pixels.datatype]}")
    files: dict[str, Mapping[str, Path | str]] = {
        "python": {"config.pbtxt": python, "1/model.py": MODEL_FILES / "decode_image.py"},
        "dali": {"config.pbtxt": dali, "1/dali.py": source},
        "auto": {
            "config.pbtxt": dali,
            "configs/cpu.pbtxt": python,
            "1/dali.py": source,
            "1/model.py": MODEL_FILES / "decode_image.py",
        },
    }
    return write_model(folder, files[settings["decoder"]])


def _write_ensemble(request: Request, network: Network, batch: int, activation: str) -> bool:
    folder = request.repository / (request.name or request.model)
    steps = [
        Step(f"{folder.name}_decoder", {ENCODED: "INPUT"}, {PIXELS: "pixels"}),
        Step(network.folder.name, {network.pixels.name: "pixels"}, {network.scores.name: "OUTPUT"}),
    ]
    inputs = (TensorSpec("INPUT", "UINT8", (-1,)),)
    outputs = (replace(network.scores, name="OUTPUT"),)
    text = ensemble_config(inputs, outputs, batch, steps, {"activation": activation})
    files: dict[str, Path | str] = {"config.pbtxt": text, "client.py": MODEL_FILES / "classes_client.py"}
    named = {"labels.txt": request.labels} if request.labels else files_of(network.folder, "labels.txt")
    return write_model(folder, files | dict(named), request.load)
