"""The ensembles `text_embedding` and `image_classes`: folders of files, with the models of
ensemble_files/ as parts.

An ensemble calls its parts by name, so all of them are in one repository (or one archive). A part's
name begins with the ensemble's name, except for models that are also served on their own.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from build_engines.build import build as build_model
from build_engines.errors import BuildError, UsageError
from build_engines.families.text_folder import PROMPTS, read_json
from build_engines.model_folder import (
    ModelSpec,
    check,
    load,
    model_config,
    parameters_of,
    publish,
    read_config,
    render,
    scratch_folder,
    specs,
)
from build_engines.request import Request
from build_engines.weights import onnx_files, sources
from clients._text.embedding import POOLED
from clients._text.tokenizer import TextTokenizer
from clients.base import ACTIVATIONS, TensorSpec
from serving.named_value import NamedValue

PARTS = Path(__file__).resolve().parent / "ensemble_files"
MAX_BATCH_SIZE = 16
CACHE = "__pycache__"
# the recipes that are built unless --weights names a network
ENCODER, CLASSIFIER = "bert", "efficientnet"
OF_TEXTS = (  # settings of clients/bert.py
    NamedValue(
        "pooling", "mean", "the tokens that the embedding comes from", choices=("mean", "cls")
    ),
    NamedValue("normalize", True, "whether to scale the embedding to length 1"),
    NamedValue("max_length", 0, "longest text in tokens; 0: the model's own limit", minimum=0),
    NamedValue(
        "pad_to_multiple_of", 1, "pads each batch to a multiple of this number of tokens", minimum=1
    ),
)
OF_IMAGES = (
    NamedValue("decoder", "auto", "what decodes images", choices=("auto", "dali", "python")),
    NamedValue("mean", 0.0, "is subtracted from each pixel"),
    NamedValue("std", 1.0, "divides each pixel"),
    NamedValue(
        "activation", "softmax", "what turns outputs into scores", choices=tuple(ACTIVATIONS)
    ),
)
DALI_TYPES = {"FP32": "FLOAT", "UINT8": "UINT8"}  # of the network's input
TEXT, MASK = "INPUT0", "attention_mask"
ENCODED, PIXELS = "DALI_INPUT_0", "DALI_OUTPUT_0"
IMAGE = TensorSpec(ENCODED, "UINT8", (-1,))  # the bytes of an encoded image

Files = dict[str, Path | str]
# a part; its inputs and outputs -> the ensemble's tensors
Step = tuple[str, Mapping[str, str], Mapping[str, str]]


def text_embedding(request: Request, force: bool = False) -> tuple[Path, bool]:
    """Build tokenizer (Python backend) -> encoder -> pooling (Python backend): text in, embedding
    out.

        INPUT0 STRING [n, 1] -> input_ids, attention_mask, … -> sentence_embedding
            -> finaloutput FP32 [n, 384]

    The encoder is the model `bert` of the same repository, or another one named --weights, on any
    engine. Triton's Python environment needs numpy below 2, and tokenizers. Return the folder, and
    whether anything had to be made.
    """
    target, batch = request.repository / (request.name or request.model), _batch_size(request)
    _settings(request, OF_TEXTS)  # a wrong one is refused before the encoder is built
    encoder, changed = _build_encoder(request, target.name, batch, force)
    config = read_config(encoder)
    own = parameters_of(config)
    settings = _settings(request, OF_TEXTS, own)
    outputs = {spec.name: spec for spec in specs(config.output)}
    encoded = next(iter(outputs.values()))
    if "pooling" not in request.settings:
        encoded = outputs.get(POOLED, encoded)  # the output that the encoder pooled itself
    inputs = specs(config.input)
    text = TensorSpec(TEXT, "BYTES", (1,))
    final = TensorSpec("finaloutput", "FP32", encoded.shape[-1:])
    tokenizer_files = _tokenizer_part(
        encoder / own.get("tokenizer", "tokenizer"), settings, inputs, batch
    )
    of_pooling = {"pooling": settings["pooling"], "normalize": str(settings["normalize"]).lower()}
    mask = next(spec for spec in inputs if spec.name == MASK)
    tokens = {spec.name: spec.name for spec in inputs}
    steps: list[Step] = [
        (f"{target.name}_tokenizer", {TEXT: TEXT}, tokens),
        (encoder.name, tokens, {encoded.name: encoded.name}),
        (
            f"{target.name}_pooling",
            {encoded.name: encoded.name, MASK: MASK},
            {final.name: final.name},
        ),
    ]
    pooling_files: Files = {
        "config.pbtxt": _config("python", (encoded, mask), (final,), batch, of_pooling),
        "1/model.py": PARTS / "pool_tokens.py",
    }
    files: Files = {
        "config.pbtxt": _config("ensemble", (text,), (final,), batch, steps=steps),
        "client.py": PARTS / "embedding_client.py",
        **{example.name: example for example in encoder.glob("example.*")},
    }
    written = [
        write_model(target.with_name(f"{target.name}_tokenizer"), tokenizer_files),
        write_model(target.with_name(f"{target.name}_pooling"), pooling_files),
        write_model(target, files, request.load),
    ]
    return target, changed or any(written)


def _build_encoder(request: Request, ensemble: str, batch: int, force: bool) -> tuple[Path, bool]:
    """Build the encoder, `bert` or the ensemble's own. Raise BuildError if it takes fewer than
    `batch` texts."""
    usual = request.weights in ("", "pretrained") and request.precision == "fp32"
    name = ENCODER if usual else f"{ensemble}_{ENCODER}"
    asked = replace(
        request, model=ENCODER, name=name, task="embedding", max_batch_size=-1, settings={}
    )
    encoder, changed = build_model(asked, force)
    if 0 < (most := read_config(encoder).max_batch_size) < batch:
        raise BuildError(
            f"'{encoder.name}' takes at most {most} texts in a batch: set --max-batch-size {most}"
        )
    return encoder, changed


def _tokenizer_part(
    folder: Path, settings: Mapping[str, Any], outputs: tuple[TensorSpec, ...], batch: int
) -> Files:
    """Return the files of the part that turns texts into `outputs`, the encoder's input tensors,
    with the tokenizer and the default prompt of the folder."""
    tokenizer, prompts = TextTokenizer(folder, settings["max_length"]), read_json(folder / PROMPTS)
    parameters = {
        "max_length": str(tokenizer.max_length),
        "pad_id": str(tokenizer.pad_id),
        "pad_to_multiple_of": str(settings["pad_to_multiple_of"]),
        "prompt": (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name"), ""),
        "truncation_side": tokenizer.direction,
    }
    return {
        "config.pbtxt": _config(
            "python", (TensorSpec(TEXT, "BYTES", (1,)),), outputs, batch, parameters
        ),
        "1/model.py": PARTS / "tokenize_text.py",
        "tokenizer/tokenizer.json": json.dumps(
            json.loads(tokenizer.tokenizer.to_str()), ensure_ascii=False
        ),
    }


def image_classes(request: Request, force: bool = False) -> tuple[Path, bool]:
    """Build decoding (DALI, or Python) -> a classifier: encoded image in, scores of classes out.

        INPUT UINT8 [n, bytes] -> pixels [n, 3, size, size] or [n, size, size, 3]
            -> OUTPUT FP32 [n, classes]

    --weights takes an ONNX file of one square RGB image; without it the classifier is the bundled
    `efficientnet`. --set takes decoder=dali to decode on DALI everywhere, python nowhere, auto (the
    default) on GPU machines; mean and std of pixels from 0 to 255, for a network that takes FP32;
    and the client's activation. Return the folder, and whether anything had to be made.
    """
    target, batch = request.repository / (request.name or request.model), _batch_size(request)
    settings = _settings(request, OF_IMAGES)
    part = f"{target.name}_classifier"
    model = part if request.weights else CLASSIFIER
    network, changed = build_model(
        replace(request, model=model, name=part, max_batch_size=batch, settings={}), force
    )
    pixels, scores, size, layout = _classifier_tensors(network)
    weights = sources.find(request)
    is_onnx = weights is not None and sources.kind(weights) == "onnx"
    if weights and is_onnx and onnx_files.squashed_by(onnx_files.read(weights), scores.name):
        settings = settings | {"activation": request.settings.get("activation", "none")}
    steps: list[Step] = [
        (f"{target.name}_decoder", {ENCODED: "INPUT"}, {PIXELS: "pixels"}),
        (network.name, {pixels.name: "pixels"}, {scores.name: "OUTPUT"}),
    ]
    own = {"activation": settings["activation"]}
    inputs, outputs = (replace(IMAGE, name="INPUT"),), (replace(scores, name="OUTPUT"),)
    labels = request.labels or next(network.glob("labels.txt"), None)
    files: Files = {
        "config.pbtxt": _config("ensemble", inputs, outputs, batch, own, steps),
        "client.py": PARTS / "classes_client.py",
        **({"labels.txt": labels} if labels else {}),
    }
    written = [
        write_model(
            target.with_name(f"{target.name}_decoder"),
            _decoder_part(settings, pixels, size, layout, batch),
        ),
        write_model(target, files, request.load),
    ]
    return target, changed or any(written)


def _decoder_part(
    settings: Mapping[str, Any], pixels: TensorSpec, size: int, layout: str, batch: int
) -> Files:
    """Return the files of the part that decodes images into `pixels`, the classifier's input. With
    decoder=auto they are DALI's, and config.pbtxt of a machine without a GPU names the Python
    backend."""
    decoded = replace(pixels, name=PIXELS)
    normalization = {
        "size": str(size),
        "mean": str(settings["mean"]),
        "std": str(settings["std"]),
        "layout": layout,
    }
    python = _config("python", (IMAGE,), (decoded,), batch, normalization)
    dali = _config("dali", (IMAGE,), (decoded,), batch)
    source = (PARTS / "dali.py").read_text(encoding="utf-8")
    source = source.replace("SIZE = 224", f"SIZE = {size}").replace('"CHW"', f'"{layout}"')
    source = source.replace(
        "MEAN, STD = 0, 1", f"MEAN, STD = {settings['mean']}, {settings['std']}"
    )
    source = source.replace("types.FLOAT", f"types.{DALI_TYPES[pixels.datatype]}")
    files: Files = {"config.pbtxt": python if settings["decoder"] == "python" else dali}
    files |= {"1/dali.py": source} if settings["decoder"] != "python" else {}
    files |= {"1/model.py": PARTS / "decode_image.py"} if settings["decoder"] != "dali" else {}
    files |= {"configs/cpu.pbtxt": python} if settings["decoder"] == "auto" else {}
    return files


def _classifier_tensors(folder: Path) -> tuple[TensorSpec, TensorSpec, int, str]:
    """Return the input, the output, the input's size and its layout. Raise BuildError unless the
    model takes batches of one square RGB image and returns [n, classes]."""
    config = read_config(folder)
    inputs, outputs = specs(config.input), specs(config.output)
    if (
        len(inputs) == len(outputs) == 1
        and len(inputs[0].shape) == 3
        and len(outputs[0].shape) == 1
    ):
        shape, known = inputs[0].shape, inputs[0].datatype in DALI_TYPES and config.max_batch_size
        for layout, size, wanted in (
            ("CHW", shape[2], (3, *shape[2:] * 2)),
            ("HWC", shape[0], (*shape[:1] * 2, 3)),
        ):
            if known and shape == wanted and size > 0:
                return inputs[0], outputs[0], size, layout
    tensors = "; ".join(
        f"{spec.name} {spec.datatype} {list(spec.shape)}" for spec in (*inputs, *outputs)
    )
    raise BuildError(
        f"the network is not a classifier for batches: its tensors are {tensors}; it must "
        "take one image, FP32 or UINT8 [N, 3, SIZE, SIZE] or [N, SIZE, SIZE, 3], and return "
        "[N, classes]"
    )


def write_model(folder: Path, files: Mapping[str, Path | str], loads: bool = False) -> bool:
    """Write a model folder with these files (a path is copied) and version 1. Return False if it
    exists unchanged.

    Raise BuildError if `serve --check` would refuse it. `loads`: load it and its parts before it is
    published.
    """
    contents = {
        name: file.read_bytes() if isinstance(file, Path) else file.encode()
        for name, file in files.items()
    }
    files_there = (
        path for path in folder.rglob("*") if path.is_file() and path.parent.name != CACHE
    )
    if {str(path.relative_to(folder)): path.read_bytes() for path in files_there} == contents:
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(folder.parent) as scratch:
        (scratch / "1").mkdir()
        for name, content in contents.items():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / name).write_bytes(content)
        check(scratch, folder.name)
        if loads:
            load(scratch, folder)
        shutil.rmtree(scratch / CACHE, ignore_errors=True)  # of the client, which `check` imports
        publish(scratch, folder)
    return True


def _config(
    backend: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    batch: int,
    settings: Mapping[str, str] | None = None,
    steps: Iterable[Step] = (),
) -> str:
    """Return the config.pbtxt of an ensemble, or of a part on the Python or DALI backend: one
    instance on the processor."""
    model_spec = ModelSpec(
        inputs=inputs, outputs=outputs, max_batch_size=batch, settings=settings or {}, platform=""
    )
    config: Any = model_config(
        model_spec, platform="", kind="KIND_CPU", count=1, request=Request("")
    )
    if backend == "ensemble":
        config.platform = backend
        config.ClearField("instance_group")
        config.ClearField("dynamic_batching")
    else:
        config.backend = backend
    for tensor in config.input if backend == "dali" else ():
        tensor.allow_ragged_batch = True  # batches may mix lengths
    for model, taken, produced in steps:
        part = config.ensemble_scheduling.step.add(model_name=model, model_version=-1)
        part.input_map.update(taken)
        part.output_map.update(produced)
    return render(config)


def _batch_size(request: Request) -> int:
    """Return the largest batch of the ensemble and all its parts."""
    return MAX_BATCH_SIZE if request.max_batch_size < 1 else request.max_batch_size


def _settings(
    request: Request, known: Iterable[NamedValue], own: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the value of each known setting: from --set, else from `own`, else the default. Raise
    UsageError for an unknown name or a wrong value."""
    values = {value.name: value for value in known}
    if unknown := sorted(set(request.settings) - set(values)):
        raise UsageError(f"--set {unknown[0]}: '{request.model}' has {', '.join(values)}")
    settings = {name: value.default for name, value in values.items()}
    for name, text in {**(own or {}), **request.settings}.items():
        if name in values:
            try:
                settings[name] = values[name].parse(text)
            except ValueError as err:
                raise UsageError(f"--set {name}: {err}") from err
    return settings
