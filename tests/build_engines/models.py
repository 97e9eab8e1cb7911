"""Writes small ONNX files and model folders for the tests."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from PIL import Image

from build_engines.__main__ import main
from build_engines.build import build
from build_engines.families.find_family import find_family
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from build_engines.stored_model import StoredModel, open_model
from build_engines.weights import Weights
from tests.support.digits import held_out, held_out_pages
from tests.support.harness import parsed


def build_own(tmp_path: Path, file: Path, **options: Any) -> StoredModel:
    """Build the model folder `own` from a file, and return it."""
    build(Request("own", str(file), repository=tmp_path / "models", **options))
    return open_model("own", tmp_path / "models")


def run(words: str) -> int:
    """Run `python -m build_engines` with these words in this process; return its exit code."""
    return main(words.split())


def exported(request: Request, path: Path, folder: Path) -> ModelSpec:
    """Write the fp32 model of these weights into the folder."""
    weights = Weights(path)
    return find_family(request, weights).write_model(weights, request, folder)


def save_scale(path: Path, x: str = "float[batch, 4]", external: bool = False) -> Path:
    """Save y = 2 x. With `external`, the weights are in a separate file, weights.bin."""
    graph = parsed(f"scale ({x} x) => ({x} y) {{ y = Mul (x, two) }}").graph
    graph.initializer.append(numpy_helper.from_array(np.full(1, 2, np.float32), "two"))
    return save(graph, path, external)


def save_classifier(
    path: Path, classes: int = 3, head: str = "logits = MatMul (e, m)", outputs: str = ""
) -> Path:
    """Save a network of two convolutions, a mean and a head: images [batch,3,16,16] -> logits
    [batch,classes]."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "m": (8, classes)}
    graph = parsed(f"""classifier (float[batch,3,16,16] images)
        => ({outputs or f"float[batch,{classes}] logits"}) {{
        a = Conv <pads = [1, 1, 1, 1]> (images, w1)
        b = Relu (a)
        c = Conv <pads = [1, 1, 1, 1]> (b, w2)
        d = GlobalAveragePool (c)
        e = Flatten (d)
        {head}
    }}""").graph
    for node in graph.node:
        node.name = node.output[0]
    arrays = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return save(graph, path)


def save_ports(path: Path, outputs: Mapping[str, Sequence[int]], **metadata: str) -> Path:
    """Save a file that cannot run, but declares images [batch,3,640,640] as its input and outputs
    of these shapes. `metadata` is written as Ultralytics' exporter would."""
    nodes = (f"{name} = Identity (images)" for name in outputs)
    return save_detector(path, outputs, " ".join(nodes), 640, **metadata)


def save_constants(
    path: Path, outputs: Mapping[str, NDArray[Any]], side: int | str = 64, **metadata: str
) -> Path:
    """Save a model that returns these arrays for every image."""
    nodes = ["means = ReduceMean <axes = [1, 2, 3], keepdims = 0> (images)"]
    nodes += ["zeros = Sub (means, means)"]
    for name, array in outputs.items():
        ones = ", ".join(["-1", *["1"] * array.ndim])
        nodes += [f"{name}_shape = Constant <value_ints = [{ones}]> ()"]
        nodes += [f"{name}_zeros = Reshape (zeros, {name}_shape)"]
        nodes += [f"{name} = Add ({name}_zeros, {name}_values)"]
    shapes = {name: array.shape for name, array in outputs.items()}
    model = onnx.load(save_detector(path, shapes, "\n".join(nodes), side, **metadata))
    for name, array in outputs.items():
        values = numpy_helper.from_array(array.astype(np.float32), f"{name}_values")
        model.graph.initializer.append(values)
    onnx.save(model, path)
    return path


def save_detector(
    path: Path, outputs: Mapping[str, Sequence[int]], nodes: str, side: int | str, **metadata: str
) -> Path:
    ports = (
        f"float[batch, {', '.join(map(str, shape))}] {name}" for name, shape in outputs.items()
    )
    images = f"float[batch, 3, {side}, {side}] images"
    save(parsed(f"detector ({images}) => ({', '.join(ports)}) {{ {nodes} }}").graph, path)
    model = onnx.load(path)
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


def save(graph: onnx.GraphProto, path: Path, external: bool = False) -> Path:
    """Save a graph of opset 17. With `external`, its weights are in a separate file,
    weights.bin."""
    path.parent.mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path


def session(path: Path) -> onnxruntime.InferenceSession:
    """Return a session with one thread, because tests may run in parallel."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


def save_images(folder: Path, images: Iterable[Image.Image]) -> Path:
    folder.mkdir()
    for number, image in enumerate(images):
        image.save(folder / f"{number:03}.png")
    return folder


def save_digits(folder: Path, count: int = 64) -> Path:
    """Save pictures of digits for the calibration of `resnet`. Return their folder."""
    return save_images(folder / "digits", (image for image, _ in held_out(count)))


def save_pages(folder: Path, count: int = 16) -> Path:
    """Save pages of digits for the calibration of `yolov5`. Return their folder."""
    return save_images(folder / "pages", (page.image for page in islice(held_out_pages(7), count)))


def save_texts(folder: Path) -> Path:
    """Save lines of text for the calibration of `bert`. Return their file."""
    file = folder / "texts.txt"
    words = (
        "the train was late",
        "how do I reset my password",
        "a cat sleeps on the roof",
        "water boils at 100°",
    )
    file.write_text("".join(f"{one}, and {other}.\n" for one in words for other in words))
    return file
