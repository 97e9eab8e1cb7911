"""Text in, embedding out, inside Triton: tokenizer (Python backend) -> encoder -> pooling (Python backend).

    INPUT0 STRING [n, 1] -> input_ids, attention_mask, token_type_ids -> sentence_embedding -> finaloutput FP32 [n, 384]

The encoder is the model `bert` of the same repository, or another one named --weights; with --for tensorrt it is a
TensorRT engine, and nothing else changes. Triton's Python environment needs numpy below 2, and tokenizers.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from build_engines.build import build as build_model
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
from clients._text.embedding import POOLED
from clients._text.tokenizer import TextTokenizer
from clients.base import TensorSpec

TEXT, MASK = "INPUT0", "attention_mask"
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
    encoded = _encoded(config, request)
    if config.max_batch_size and config.max_batch_size < batch:
        raise BuildError(
            f"'{folder.name}' takes {config.max_batch_size} texts at most: --max-batch-size {config.max_batch_size}"
        )
    written = (
        _write_tokenizer(request.repository / f"{name}_tokenizer", folder, config, batch, settings),
        _write_pooling(request.repository / f"{name}_pooling", config, encoded, batch, settings),
        _write_ensemble(request, folder, config, encoded, batch),
    )
    return request.repository / name, made or any(written)


def _encoded(config: Any, request: Request) -> TensorSpec:
    """The encoder's output that is taken: what it has pooled itself, or else its first."""
    outputs = {spec.name: spec for spec in specs(config.output)}
    first = next(iter(outputs.values()))
    return first if "pooling" in request.settings else outputs.get(POOLED, first)


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


def _write_pooling(folder: Path, config: Any, encoded: TensorSpec, batch: int, settings: Mapping[str, str]) -> bool:
    mask = next(spec for spec in specs(config.input) if spec.name == MASK)
    parameters = {"pooling": settings["pooling"], "normalize": settings["normalize"].lower()}
    outputs = (TensorSpec("finaloutput", "FP32", encoded.shape[-1:]),)
    return write_model(
        folder,
        {
            "config.pbtxt": python_config((encoded, mask), outputs, batch, parameters),
            "1/model.py": MODEL_FILES / "pool_tokens.py",
        },
    )


def _write_ensemble(request: Request, encoder: Path, config: Any, encoded: TensorSpec, batch: int) -> bool:
    folder = request.repository / (request.name or request.model)
    tokens = {spec.name: spec.name for spec in specs(config.input)}
    passed = {encoded.name: encoded.name}
    steps = [
        Step(f"{folder.name}_tokenizer", {TEXT: TEXT}, tokens),
        Step(encoder.name, tokens, passed),
        Step(f"{folder.name}_pooling", passed | {MASK: MASK}, {"finaloutput": "finaloutput"}),
    ]
    inputs = (TensorSpec(TEXT, "BYTES", (1,)),)
    outputs = (TensorSpec("finaloutput", "FP32", encoded.shape[-1:]),)
    return write_model(
        folder,
        {
            "config.pbtxt": ensemble_config(inputs, outputs, batch, steps),
            "client.py": MODEL_FILES / "embedding_client.py",
            **files_of(encoder, "example.*"),
        },
        request.load,
    )
