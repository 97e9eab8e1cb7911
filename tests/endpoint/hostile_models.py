"""The models that hostile requests are sent to: a small one of the repository, and networks that
take no time, so that what is measured is the front."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from clients._text.fill_mask import POSITIONS
from tests.endpoint.test_classification import make_echo
from tests.support.harness import ONE_INSTANCE, ROOT, link_model, make_sleeper

BERT = ROOT / "model_repository/bert"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
BOXES = 25_200  # of YOLOv5 at 640 x 640 pixels
# The task of each model, and the width of its last dimension.
TEXTS = {
    "ranking": ("text-ranking", 1),
    "entities": ("token-classification", 3),
    "answers": ("question-answering", 2),
    "masks": ("fill-mask", 30_522),
    "compact_masks": ("fill-mask", 30_522),
    "zero_shot": ("zero-shot-classification", 3),
    "opinions": ("text-classification", 3),
    "vectors": ("embedding", 384),
}
EXAMPLES = {
    "ranking": {"query": "a dog", "documents": ["a dog", "a cat"]},
    "answers": {"question": "who", "context": "a dog"},
    "masks": {"text": "a [MASK]"},
    "compact_masks": {"text": "a [MASK]"},
    "zero_shot": {"text": "a dog", "candidate_labels": ["dogs"]},
}
OF_TOKENS = ("token-classification", "question-answering", "fill-mask")
LABELS = {"0": "contradiction", "1": "neutral", "2": "entailment"}


def make_models(repository: Path) -> None:
    link_model(ROOT / "model_repository/resnet", repository)
    make_echo(repository, "numbers", "FP32")
    make_echo(repository, "texts", "STRING")
    make_text_models(repository, TEXTS)
    make_detector(repository / "boxes")
    make_sleeper(repository, "json")  # a client that takes any JSON value
    make_table(repository / "table")


def make_text_models(repository: Path, names: Iterable[str]) -> None:
    """Make some of TEXTS, each with an example."""
    for name in names:
        make_text_model(repository / name, *TEXTS[name])
        example = json.dumps(EXAMPLES.get(name, {"text": "a dog"}))
        (repository / name / "example.json").write_text(example)


def make_text_model(folder: Path, task: str, width: int) -> None:
    """Make a network whose scores are its token ids times some weights, with the tokenizer of the
    built-in `bert`. A compact one has scores for the masks alone."""
    compact = [POSITIONS] if folder.name.startswith("compact") else []
    names = [*INPUTS, *compact]
    nodes = [
        helper.make_node("Cast", [(compact or names)[0]], ["ids"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["ids", "last"], ["columns"]),
        helper.make_node("Mul", ["columns", "weights"], ["scores"]),
    ]
    sizes = [-1, width]
    if task in OF_TOKENS:
        nodes[-1].output[0] = "logits"
    else:
        nodes.append(helper.make_node("ReduceMean", ["scores"], ["logits"], axes=[1], keepdims=0))
        sizes = [width]
    weights = np.linspace(0, 1e-4, width + 1, dtype=np.float32)[1:]
    constants = {"last": np.array([-1]), "weights": weights}
    save(folder, nodes, dict.fromkeys(names, TensorProto.INT64), "logits", len(sizes), constants)
    inputs = "".join(
        f'input {{ name: "{name}" data_type: TYPE_INT64 dims: [-1] }}\n' for name in names
    )
    output = f'output {{ name: "logits" data_type: TYPE_FP32 dims: {sizes} }}\n'
    write_config(folder, f"max_batch_size: 32\n{inputs}{output}", client="bert", task=task)
    for file in (BERT / "tokenizer").iterdir():
        (folder / "tokenizer").mkdir(exist_ok=True)
        (folder / "tokenizer" / file.name).write_bytes(file.read_bytes())
    config = folder / "tokenizer/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"id2label": LABELS}))


def make_detector(folder: Path) -> None:
    """Make a detector that finds the same boxes in every image, at all scores."""
    random = np.random.default_rng(0)
    table = np.zeros((1, BOXES, 7), np.float32)
    table[..., :2] = random.uniform(0, 64, (1, BOXES, 2))
    table[..., 2:4] = random.uniform(1, 32, (1, BOXES, 2))
    table[..., 4:] = random.uniform(0.1, 1, (1, BOXES, 3))
    nodes = [
        helper.make_node("ReduceMax", ["images"], ["most"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Squeeze", ["most", "last"], ["rows"]),
        helper.make_node("Mul", ["rows", "nothing"], ["zeros"]),
        helper.make_node("Add", ["zeros", "table"], ["output0"]),
    ]
    constants = {"last": np.array([-1]), "nothing": np.zeros(1, np.float32), "table": table}
    save(folder, nodes, {"images": TensorProto.FLOAT}, "output0", 2, constants, [3, 64, 64])
    tensors = (
        'input { name: "images" data_type: TYPE_FP32 dims: [3, 64, 64] }\n'
        f'output {{ name: "output0" data_type: TYPE_FP32 dims: [{BOXES}, 7] }}\n'
    )
    write_config(folder, f"max_batch_size: 8\n{tensors}", client="yolov5")


def make_table(folder: Path) -> None:
    """Make a table of 100 columns, whose predictions are its rows."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    save(folder, nodes, {"x": TensorProto.FLOAT}, "y", 1, {}, [100])
    tensors = (
        'input { name: "x" data_type: TYPE_FP32 dims: [100] }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [100] }\n'
    )
    write_config(folder, f"max_batch_size: 32\n{tensors}", client="table")


def save(
    folder: Path,
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, int],
    output: str,
    rank: int,
    constants: Mapping[str, NDArray[Any]],
    shape: Sequence[Any] = ("length",),
) -> None:
    """Save a network; `shape` is that of its inputs and `rank` its output's, both without the
    batch dimension."""
    sizes = ["batch", *shape]
    graph = helper.make_graph(
        nodes,
        folder.name,
        [helper.make_tensor_value_info(name, kind, sizes) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, [None] * (rank + 1))],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    (folder / "1").mkdir(parents=True)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "1/model.onnx")


def write_config(folder: Path, text: str, **parameters: str) -> None:
    own = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in parameters.items()
    )
    config = f'platform: "onnxruntime_onnx"\n{text}{ONE_INSTANCE}{own}'
    (folder / "config.pbtxt").write_text(config)
