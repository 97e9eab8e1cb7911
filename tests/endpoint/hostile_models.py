"""Makes the models for hostile requests: a small one of the repository, and networks that take
almost no time, so that the measurements show the cost of the front."""

import json
import shutil
import tarfile
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from clients._text.fill_mask import POSITIONS
from tests.endpoint.test_classification import make_echo
from tests.support.harness import ONE_INSTANCE, ROOT, link_model, make_sleeper, parsed

BERT = ROOT / "model_repository/bert"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
BOXES = 25_200  # number of boxes of YOLOv5 at 640 × 640 pixels
# the task of each model, and the size of its last dimension
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
    make_sleeper(repository, "json")  # it has a client that accepts any JSON value
    make_table(repository / "table")


def make_archive_bomb(repository: Path, megabytes: int) -> None:
    """Write the archive `bomb`, whose files of a megabyte are empty when compressed."""
    with tarfile.open(repository / "bomb.tar.gz", "w:gz", compresslevel=1) as tar:
        for number in range(megabytes):
            member = tarfile.TarInfo(f"bomb/1/{number}")
            member.size = 2**20
            tar.addfile(member, BytesIO(bytes(member.size)))


def make_text_models(repository: Path, names: Iterable[str]) -> None:
    """Make the named models of TEXTS, each with an example."""
    for name in names:
        make_text_model(repository / name, *TEXTS[name])
        example = json.dumps(EXAMPLES.get(name, {"text": "a dog"}))
        (repository / name / "example.json").write_text(example)


def make_text_model(folder: Path, task: str, width: int) -> None:
    """Make a network whose scores are its token ids multiplied by weights, with the tokenizer of
    the bundled `bert`. A compact network has scores for the masks only."""
    names = [*INPUTS, POSITIONS] if folder.name.startswith("compact") else INPUTS
    ids = POSITIONS if POSITIONS in names else INPUTS[0]
    scores, mean, sizes, shape = "logits", "", [-1, width], f"batch, length, {width}"
    if task not in OF_TOKENS:
        scores, mean = "scores", "logits = ReduceMean <axes=[1], keepdims=0> (scores)"
        sizes, shape = [width], f"batch, {width}"
    inputs = ", ".join(f"int64[batch, length] {name}" for name in names)
    graph = f"""{folder.name} ({inputs}) => (float[{shape}] logits) {{
        floats = Cast <to=1> ({ids})
        columns = Unsqueeze (floats, last)
        {scores} = Mul (columns, weights)
        {mean}
    }}"""
    weights = np.linspace(0, 1e-4, width + 1, dtype=np.float32)[1:]
    save(folder, graph, last=np.array([-1]), weights=weights)
    declared = "".join(
        f'input {{ name: "{name}" data_type: TYPE_INT64 dims: [-1] }}\n' for name in names
    )
    output = f'output {{ name: "logits" data_type: TYPE_FP32 dims: {sizes} }}\n'
    write_config(folder, f"max_batch_size: 32\n{declared}{output}", client="bert", task=task)
    shutil.copytree(BERT / "tokenizer", folder / "tokenizer")
    config = folder / "tokenizer/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"id2label": LABELS}))


def make_detector(folder: Path) -> None:
    """Make a detector that finds the same boxes in every image, with all possible scores."""
    random = np.random.default_rng(0)
    table = np.zeros((1, BOXES, 7), np.float32)
    table[..., :2] = random.uniform(0, 64, (1, BOXES, 2))
    table[..., 2:4] = random.uniform(1, 32, (1, BOXES, 2))
    table[..., 4:] = random.uniform(0.1, 1, (1, BOXES, 3))
    graph = f"""boxes (float[batch, 3, 64, 64] images) => (float[batch, {BOXES}, 7] output0) {{
        most = ReduceMax <axes=[1, 2, 3], keepdims=1> (images)
        rows = Squeeze (most, last)
        zeros = Mul (rows, nothing)
        output0 = Add (zeros, table)
    }}"""
    save(folder, graph, last=np.array([-1]), nothing=np.zeros(1, np.float32), table=table)
    tensors = (
        'input { name: "images" data_type: TYPE_FP32 dims: [3, 64, 64] }\n'
        f'output {{ name: "output0" data_type: TYPE_FP32 dims: [{BOXES}, 7] }}\n'
    )
    write_config(folder, f"max_batch_size: 8\n{tensors}", client="yolov5")


def make_table(folder: Path) -> None:
    """Make a tabular model of 100 columns whose predictions are its rows."""
    save(folder, "table (float[batch, 100] x) => (float[batch, 100] y) { y = Identity (x) }")
    tensors = (
        'input { name: "x" data_type: TYPE_FP32 dims: [100] }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [100] }\n'
    )
    write_config(folder, f"max_batch_size: 32\n{tensors}", client="table")


def save(folder: Path, graph: str, **constants: NDArray[Any]) -> None:
    """Save a network whose graph uses these constants."""
    model = parsed(graph)
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    (folder / "1").mkdir(parents=True)
    onnx.save(model, folder / "1/model.onnx")


def write_config(folder: Path, text: str, **parameters: str) -> None:
    own = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in parameters.items()
    )
    config = f'platform: "onnxruntime_onnx"\n{text}{ONE_INSTANCE}{own}'
    (folder / "config.pbtxt").write_text(config)
