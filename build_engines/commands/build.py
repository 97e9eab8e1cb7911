"""`build`: one model, or an ensemble with its parts."""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from build_engines.building.model import build as build_model
from build_engines.engines.trtexec import find_trtexec
from build_engines.ensembles import inception, text_embedding
from build_engines.errors import UsageError
from build_engines.recipes import RECIPES
from build_engines.request import Request, ServingOptions
from serving.host.machine import has_gpu
from serving.inference.registry import family_name

ENSEMBLES = {"text_embedding": text_embedding.build, "inception": inception.build}


def run(parsed: argparse.Namespace) -> int:
    """Prints the folder, and how long it took where it was made."""
    started = time.monotonic()
    folder, made = build(request_of(parsed), parsed.force)
    print(f"built {folder} in {time.monotonic() - started:.1f} s" if made else f"{folder} is up to date")
    return 0


def build(request: Request, force: bool = False) -> tuple[Path, bool]:
    """The model's folder, and whether anything had to be made; BuildError."""
    return ENSEMBLES.get(request.model, build_model)(request, force)


def request_of(parsed: argparse.Namespace) -> Request:
    """What `build` is asked for; UsageError for a name that cannot be a model's."""
    for name in (parsed.model, parsed.name):
        if name.startswith(".") or "/" in name or name != name.strip():
            raise UsageError(f"'{name}' cannot be the name of a model's folder")
    if parsed.model not in RECIPES and not parsed.weights:
        raise UsageError(
            f"'{parsed.model}' is not known; the models are {', '.join(RECIPES)}; for one of your own add "
            "--weights PATH or HUB-ID"
        )
    serving = ServingOptions(
        instances=parsed.instances,
        preferred_batch_sizes=parsed.preferred_batch_sizes,
        queue_delay=parsed.queue_delay,
        warm_up=parsed.warm_up,
        response_cache=parsed.response_cache,
        versions=parsed.versions,
        sequence_idle=parsed.sequence_idle,
    )
    return Request(
        model=parsed.model,
        weights=parsed.weights,
        precision=parsed.precision or ("auto" if parsed.target == "auto" else "fp32"),
        target=_target(parsed.target),
        repository=parsed.out.resolve(),
        name=parsed.name,
        client=family_name(parsed.client),
        task=parsed.task,
        labels=parsed.labels,
        calibration=parsed.calibration,
        tokenizer=parsed.tokenizer,
        max_batch_size=parsed.max_batch_size,
        size=parsed.size,
        boxes=parsed.boxes,
        inputs=tuple(parsed.input),
        controls=tuple(parsed.sequence_control),
        settings=dict(_pairs(parsed.set)),
        allow_pickle=parsed.allow_pickle,
        serving=serving,
    )


def _pairs(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--set {text}: it is NAME=VALUE")
        yield name, value


def _target(target: str | None) -> str:
    """A GPU's plan is faster than anything on a processor."""
    if target not in (None, "auto"):
        return str(target)
    return "tensorrt" if find_trtexec() and has_gpu() else target or "cpu"
