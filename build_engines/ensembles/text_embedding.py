"""Text in, embedding out, inside Triton: tokenizer (Python backend) -> encoder -> pooling (Python backend).

    INPUT0 STRING [n, 1] -> input_ids, attention_mask, token_type_ids -> last_hidden_state -> finaloutput FP32 [n, 384]

The encoder is the model `bert` of the same repository, or another one named --weights; with --for tensorrt it is a
TensorRT engine, and nothing else changes. Triton's Python environment needs numpy below 2, and tokenizers.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from build_engines.building.model import build as build_model
from build_engines.ensembles.parts import (
    MODEL_FILES,
    Step,
    batch_size,
    ensemble_config,
    files_of,
    python_config,
    settings_of,
    write_model,
)
from build_engines.errors import BuildError
from build_engines.model_folder.config import parameters_of, read_config, specs
from build_engines.request import Request
from clients._text.tokenizer import TextTokenizer
from clients.base import TensorSpec

TEXT, HIDDEN, MASK = "INPUT0", "last_hidden_state", "attention_mask"
ENCODER = "bert"
DEFAULTS = {"pooling": "mean", "normalize": "true", "max_length": "0", "pad_to_multiple_of": "1"}  # of clients/bert.py


def build(request: Request, force: bool = False) -> tuple[Path, bool]:
    """The ensemble's folder, and whether anything had to be made; BuildError."""
    name, batch = request.name or request.model, batch_size(request)
    usual = request.weights in ("", "pretrained") and request.precision == "fp32"
    encoder = replace(
        request,
        model=ENCODER,
        name=ENCODER if usual else f"{name}_{ENCODER}",
        task="embedding",
        max_batch_size=-1,
        settings={},
    )
    folder, made = build_model(encoder, force)
    config = read_config(folder)
    settings = settings_of(request, **(DEFAULTS | _known(parameters_of(config))))
    if config.max_batch_size and config.max_batch_size < batch:
        raise BuildError(
            f"'{folder.name}' takes {config.max_batch_size} texts at most: --max-batch-size {config.max_batch_size}"
        )
    written = (
        _write_tokenizer(request.repository / f"{name}_tokenizer", folder, config, batch, settings),
        _write_pooling(request.repository / f"{name}_pooling", config, batch, settings),
        _write_ensemble(request.repository / name, folder, config, batch),
    )
    return request.repository / name, made or any(written)


def _known(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: settings[name] for name in DEFAULTS if name in settings}


def _write_tokenizer(folder: Path, encoder: Path, config: Any, batch: int, settings: Mapping[str, str]) -> bool:
    tokenizer_folder = encoder / parameters_of(config).get("tokenizer", "tokenizer")
    tokenizer = TextTokenizer(tokenizer_folder, int(settings["max_length"]))
    parameters = {
        "max_length": str(tokenizer.max_length),
        "pad_id": str(tokenizer.pad_id),
        "pad_to_multiple_of": settings["pad_to_multiple_of"],
    }
    outputs = specs(config.input)
    return write_model(
        folder,
        {
            "config.pbtxt": python_config((TensorSpec(TEXT, "BYTES", (1,)),), outputs, batch, parameters),
            "1/model.py": MODEL_FILES / "tokenize_text.py",
            "tokenizer/tokenizer.json": json.dumps(json.loads(tokenizer.tokenizer.to_str()), ensure_ascii=False),
        },
    )


def _write_pooling(folder: Path, config: Any, batch: int, settings: Mapping[str, str]) -> bool:
    mask = next(spec for spec in specs(config.input) if spec.name == MASK)
    hidden = specs(config.output)[0]
    parameters = {"pooling": settings["pooling"], "normalize": settings["normalize"].lower()}
    inputs = (replace(hidden, name=HIDDEN), mask)
    outputs = (TensorSpec("finaloutput", "FP32", hidden.shape[-1:]),)
    return write_model(
        folder,
        {
            "config.pbtxt": python_config(inputs, outputs, batch, parameters),
            "1/model.py": MODEL_FILES / "pool_tokens.py",
        },
    )


def _write_ensemble(folder: Path, encoder: Path, config: Any, batch: int) -> bool:
    tokens = {spec.name: spec.name for spec in specs(config.input)}
    hidden = specs(config.output)[0]
    steps = [
        Step(f"{folder.name}_tokenizer", {TEXT: TEXT}, tokens),
        Step(encoder.name, tokens, {hidden.name: HIDDEN}),
        Step(f"{folder.name}_pooling", {HIDDEN: HIDDEN, MASK: MASK}, {"finaloutput": "finaloutput"}),
    ]
    inputs = (TensorSpec(TEXT, "BYTES", (1,)),)
    outputs = (TensorSpec("finaloutput", "FP32", hidden.shape[-1:]),)
    return write_model(
        folder,
        {
            "config.pbtxt": ensemble_config(inputs, outputs, batch, steps),
            "client.py": MODEL_FILES / "embedding_client.py",
            **files_of(encoder, "example.*"),
        },
    )
