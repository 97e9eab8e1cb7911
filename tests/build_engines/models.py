"""Small ONNX files and model folders that the tests build from."""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from build_engines.__main__ import main
from build_engines.build import build
from build_engines.families.find_family import find_family
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from build_engines.stored_model import StoredModel, open_model
from build_engines.weights import Weights
from tests.support.digits import held_out, held_out_pages
from tests.support.harness import parsed

Dims = Sequence[str | int]


def build_own(tmp_path: Path, file: Path, **options: Any) -> StoredModel:
    """Build the model folder `own` of a file; return it."""
    build(Request("own", str(file), repository=tmp_path / "models", **options))
    return open_model("own", tmp_path / "models")


def run(words: str) -> int:
    """Run `python -m build_engines` with these words in this process; return its exit code."""
    return main(words.split())


def exported(request: Request, path: Path, folder: Path) -> ModelSpec:
    """Write the fp32 model of these weights into the folder."""
    weights = Weights(path)
    return find_family(request, weights).write_model(weights, request, folder)


def save_scale(
    path: Path, shape: Dims = ("batch", 4), kind: int = TensorProto.FLOAT, external: bool = False
) -> Path:
    """Save y = 2 x; `external` puts the weights beside the file, in weights.bin."""
    two = numpy_helper.from_array(np.full((1,), 2, helper.tensor_dtype_to_np_dtype(kind)), "two")
    ports = [helper.make_tensor_value_info(name, kind, shape) for name in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "two"], ["y"])], "scale", ports[:1], ports[1:], [two]
    )
    return save(graph, path, external)


def save_classifier(path: Path, side: int = 16, classes: int = 3) -> Path:
    """Save two convolutions, the mean and a matrix: images [batch,3,side,side] -> logits
    [batch,classes]."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "m": (8, classes)}
    graph = parsed(f"""classifier (float[batch,3,{side},{side}] images)
        => (float[batch,{classes}] logits) {{
        a = Conv <pads = [1, 1, 1, 1]> (images, w1)
        b = Relu (a)
        c = Conv <pads = [1, 1, 1, 1]> (b, w2)
        d = GlobalAveragePool (c)
        e = Flatten (d)
        logits = MatMul (e, m)
    }}""").graph
    for node in graph.node:
        node.name = node.output[0]
    arrays = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return save(graph, path)


def save_ports(
    path: Path, outputs: Mapping[str, Sequence[int]], names: str = "", side: int = 640
) -> Path:
    """Save a file that only claims to turn images [batch,3,side,side] into outputs of these shapes:
    it cannot run.

    `names` are its classes as Ultralytics' exporter writes them.
    """
    graph = helper.make_graph(
        [helper.make_node("Identity", ["images"], [name]) for name in outputs],
        "ports",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, side, side])],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", *shape])
            for n, shape in outputs.items()
        ],
    )
    model = onnx.load(save(graph, path))
    if names:
        model.metadata_props.add(key="names", value=names)
    onnx.save(model, path)
    return path


def save_constants(
    path: Path, outputs: Mapping[str, NDArray[Any]], side: int = 64, **metadata: str
) -> Path:
    """Save a model that answers these arrays for each image; `metadata` is what Ultralytics'
    exporter writes."""
    nodes = [helper.make_node("ReduceMean", ["images"], ["means"], axes=[1, 2, 3], keepdims=0)]
    nodes += [helper.make_node("Mul", ["means", "zero"], ["zeros"])]
    weights = [numpy_helper.from_array(np.zeros(1, np.float32), "zero")]
    for name, array in outputs.items():
        shape = np.array([-1, *[1] * array.ndim])
        weights += [numpy_helper.from_array(shape, f"{name}_shape")]
        weights += [numpy_helper.from_array(array.astype(np.float32), f"{name}_values")]
        nodes += [helper.make_node("Reshape", ["zeros", f"{name}_shape"], [f"{name}_zeros"])]
        nodes += [helper.make_node("Add", [f"{name}_zeros", f"{name}_values"], [name])]
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "constants",
        [helper.make_tensor_value_info("images", float32, ["batch", 3, side, side])],
        [
            helper.make_tensor_value_info(name, float32, ["batch", *each.shape])
            for name, each in outputs.items()
        ],
        weights,
    )
    model = onnx.load(save(graph, path))
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


def save(graph: onnx.GraphProto, path: Path, external: bool = False) -> Path:
    """Save a graph of opset 17; `external` puts its weights beside it, in weights.bin."""
    path.parent.mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path


def session(path: Path) -> onnxruntime.InferenceSession:
    """Return a session with one thread, so that tests may run side by side."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


def save_digits(folder: Path, count: int = 64) -> Path:
    """Save pictures of digits, to calibrate `resnet` with; return their folder."""
    images = folder / "digits"
    images.mkdir()
    for number, (image, _) in enumerate(held_out(count)):
        image.save(images / f"{number:03}.png")
    return images


def save_pages(folder: Path, count: int = 16) -> Path:
    """Save pages of digits, to calibrate `yolov5` with; return their folder."""
    images = folder / "pages"
    images.mkdir()
    for number, page in enumerate(islice(held_out_pages(7), count)):
        page.image.save(images / f"{number:03}.png")
    return images


def save_texts(folder: Path) -> Path:
    """Save lines of text, to calibrate `bert` with; return their file."""
    file = folder / "texts.txt"
    words = (
        "the train was late",
        "how do I reset my password",
        "a cat sleeps on the roof",
        "water boils at 100°",
    )
    file.write_text("".join(f"{one}, and {other}.\n" for one in words for other in words))
    return file
