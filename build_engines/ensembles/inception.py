"""Encoded image in, class probabilities out, inside Triton: decoding (DALI, or Python) -> Inception v3.

    INPUT UINT8 [n, bytes] -> pixels FP32 [n, 299, 299, 3] -> OUTPUT FP32 [n, 1001]

Triton has no TensorFlow any more (since 25.03): the network is an ONNX file that keeps the TensorFlow graph's names,
layout and classes. --weights takes random (nonsense at the true speed), a checkpoint of torchvision's (.pth), an ONNX
file of one image input, or, where the image still has the backend, a frozen graph (.pb, .graphdef) or a saved model.
--set decoder=dali decodes on DALI everywhere, decoder=python nowhere, decoder=auto (the default) on GPU machines.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from build_engines.building.model import build as build_model
from build_engines.ensembles.parts import (
    MODEL_FILES,
    Specs,
    Step,
    batch_size,
    dali_config,
    ensemble_config,
    python_config,
    settings_of,
    write_model,
)
from build_engines.errors import BuildError, UsageError
from build_engines.model_folder.config import model_config, read_config, render, specs
from build_engines.model_folder.publish import publish, scratch_folder
from build_engines.model_folder.spec import ModelSpec
from build_engines.request import Request, ServingOptions
from build_engines.weights import onnx_files
from clients.base import TensorSpec

INPUT, OUTPUT = "input", "InceptionV3/Predictions/Softmax"  # of TensorFlow's frozen graph of 2016-08-28
SIDE, CLASSES = 299, 1001
LEVEL = "127.5"  # mean and deviation: the network was trained on pixels from -1 to 1
LAYOUTS: dict[tuple[int, ...], str] = {(SIDE, SIDE, 3): "HWC", (3, SIDE, SIDE): "CHW"}
ENCODED, PIXELS = "DALI_INPUT_0", "DALI_OUTPUT_0"
DECODERS = ("auto", "dali", "python")
TENSORFLOW = {
    ".pb": ("tensorflow_graphdef", "model.graphdef"),
    ".graphdef": ("tensorflow_graphdef", "model.graphdef"),
    "": ("tensorflow_savedmodel", "model.savedmodel"),
}


@dataclass(frozen=True)
class Network:
    """The classifier in the repository: its folder's name, its input and its output, the input's layout."""

    model: str
    pixels: TensorSpec
    scores: TensorSpec
    layout: str


def build(request: Request, force: bool = False) -> tuple[Path, bool]:
    """The ensemble's folder, and whether anything had to be made; BuildError."""
    name, decoder = request.name or request.model, settings_of(request, decoder=DECODERS[0])["decoder"]
    if decoder not in DECODERS:
        raise UsageError(f"--set decoder={decoder}: it is one of {', '.join(DECODERS)}")
    batch = batch_size(request)
    folder, made = _write_network(replace(request, name=f"{name}_v3"), batch, force)
    network = _read_network(folder)
    made = _write_decoder(request.repository / f"{name}_decoder", decoder, network, batch) or made
    made = _write_ensemble(request.repository / name, network, batch, request.labels) or made
    return request.repository / name, made


def _write_network(request: Request, batch: int, force: bool) -> tuple[Path, bool]:
    path = Path(request.weights) if request.weights not in ("", "random") else None
    if path is not None and not path.exists():
        raise UsageError(f"--weights {path}: there is no such file; random, or a PATH, is taken")
    if path and (path.is_dir() or path.suffix in TENSORFLOW):
        return _copy_tensorflow(request, path, batch)
    with scratch_folder(request.repository) as scratch:
        file = path if path and path.suffix == ".onnx" else _exported(path, scratch / "inception_v3.onnx")
        _check(*onnx_files.specs(onnx_files.read(file)))
        classifier = replace(
            request, model=request.name, weights=str(file), max_batch_size=batch, settings={}, labels=None
        )
        return build_model(classifier, force)


def _exported(path: Path | None, target: Path) -> Path:
    """The network of families/ with random weights or a checkpoint's, as an ONNX file."""
    from build_engines.families.inception_network import Probabilities, checkpoint_network, random_network
    from build_engines.families.torch_export import export_onnx

    network = checkpoint_network(path) if path else random_network(CLASSES)
    export_onnx(Probabilities(network), (SIDE, SIDE, 3), target, (INPUT, OUTPUT), batching=True)
    return target


def _copy_tensorflow(request: Request, path: Path, batch: int) -> tuple[Path, bool]:
    """Copies the file and writes a configuration for Triton's TensorFlow backend."""
    platform, file = TENSORFLOW["" if path.is_dir() else path.suffix]
    folder = request.repository / request.name
    model_spec = ModelSpec(
        inputs=(TensorSpec(INPUT, "FP32", (SIDE, SIDE, 3)),),
        outputs=(TensorSpec(OUTPUT, "FP32", (CLASSES,)),),
        max_batch_size=batch,
        platform=platform,
    )
    with scratch_folder(request.repository) as scratch:
        (scratch / "1").mkdir()
        if path.is_dir():
            shutil.copytree(path, scratch / "1" / file)
        else:
            shutil.copyfile(path, scratch / "1" / file)
        (scratch / "config.pbtxt").write_text(_tensorflow_config(model_spec), encoding="utf-8")
        publish(scratch, folder)
    return folder, True


def _tensorflow_config(model_spec: ModelSpec) -> str:

    config: Any = model_config(
        model_spec, platform=model_spec.platform, kind="KIND_GPU", count=1, serving=ServingOptions()
    )
    config.ClearField("instance_group")  # Triton's own choice: each GPU, or the processor
    return render(config, "Triton's TensorFlow backend serves it: NVIDIA's image up to 25.02 has one.")


def _check(inputs: Specs, outputs: Specs) -> None:
    """BuildError unless the network takes batches of one square RGB image and returns one score per class."""
    right = len(inputs) == 1 and inputs[0].shape in {(-1, *shape) for shape in LAYOUTS}
    if not right or len(outputs) != 1 or len(outputs[0].shape) != 2:
        found = "; ".join(f"{spec.name} {list(spec.shape)}" for spec in (*inputs, *outputs))
        raise BuildError(
            f"the network is no Inception v3 for batches: its tensors are {found}; it takes one image "
            f"[N, {SIDE}, {SIDE}, 3] or [N, 3, {SIDE}, {SIDE}] and gives [N, classes]"
        )


def _read_network(folder: Path) -> Network:
    """The classifier, read from its configuration."""
    config = read_config(folder)
    pixels, scores = specs(config.input)[0], specs(config.output)[0]
    return Network(folder.name, pixels, scores, LAYOUTS[pixels.shape])


def _write_decoder(folder: Path, decoder: str, network: Network, batch: int) -> bool:
    """Writes one folder for both decoders: config.pbtxt is for GPU machines, configs/cpu.pbtxt for others."""
    inputs = (TensorSpec(ENCODED, "UINT8", (-1,)),)
    outputs = (replace(network.pixels, name=PIXELS),)
    parameters = {"size": str(SIDE), "mean": LEVEL, "std": LEVEL, "layout": network.layout}
    python = python_config(inputs, outputs, batch, parameters)
    dali = dali_config(inputs, outputs, batch)
    source = (
        (MODEL_FILES / "dali.py").read_text(encoding="utf-8").replace('LAYOUT = "HWC"', f'LAYOUT = "{network.layout}"')
    )
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
    return write_model(folder, files[decoder])


def _write_ensemble(folder: Path, network: Network, batch: int, labels: Path | None) -> bool:
    steps = [
        Step(f"{folder.name}_decoder", {ENCODED: "INPUT"}, {PIXELS: "pixels"}),
        Step(network.model, {network.pixels.name: "pixels"}, {network.scores.name: "OUTPUT"}),
    ]
    inputs = (TensorSpec("INPUT", "UINT8", (-1,)),)
    text = ensemble_config(inputs, (replace(network.scores, name="OUTPUT"),), batch, steps)
    files: dict[str, Path | str] = {"config.pbtxt": text, "client.py": MODEL_FILES / "classes_client.py"}
    return write_model(folder, files | ({"labels.txt": labels} if labels else {}))
