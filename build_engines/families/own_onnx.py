"""Turns a user's own ONNX file into a model folder. The tensors are read from the file."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from build_engines import onnx_reader
from build_engines.errors import BuildError, UsageError
from build_engines.families.family import Family
from build_engines.families.onnx_tensors import open_file, with_tensors_of
from build_engines.families.own_file import (
    Findings,
    check_boxes,
    copy_example,
    run_random_rows,
    settings_of,
    spec_without_tensors,
    with_size,
)
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from build_engines.weights import Weights
from clients.base import Model
from serving.clients import make_client
from serving.errors import ConfigError, InvalidRequest


def write_model(family: Family, weights: Weights, request: Request, folder: Path) -> ModelSpec:
    """Copy the file as 1/model.onnx, with the files that hold its weights. What the graph does not
    say, a run on random rows does: whether the first dimension is a batch, and whether boxes are in
    pixels."""
    graph = weights.graph
    file = _copied(weights, folder)
    without_tensors = spec_without_tensors(family, request, folder, onnx_reader.names_of(graph))
    keypoints = onnx_reader.keypoints_of(graph)
    if keypoints and "keypoints" in settings_of(family.client):
        settings = {**without_tensors.settings, "keypoints": keypoints}
        without_tensors = replace(without_tensors, settings=settings)
    opened = open_file(file)
    spec = with_tensors_of(request, graph, opened, without_tensors)
    findings = Findings()
    if opened and (spec.max_batch_size or family.boxes_in_pixels):
        findings = run_random_rows(family, opened, spec)
    check_boxes(family, findings)
    if findings.mixes_rows:
        if request.max_batch_size > 0:
            raise UsageError(
                f"--max-batch-size {request.max_batch_size}: rows have other answers together "
                "than alone"
            )
        one_by_one = replace(request, max_batch_size=0)
        spec = with_tensors_of(one_by_one, graph, opened, without_tensors)
    spec = with_size(request, spec, onnx_reader.size_of(graph))
    copy_example(family, folder, spec)
    return _with_scores(family, request, folder, graph, spec)


def _copied(weights: Weights, folder: Path) -> Path:
    """Copy the file, and the other files that hold its weights. Return the copied file."""
    file = folder / "1" / "model.onnx"
    shutil.copyfile(weights.path, file)
    for source in onnx_reader.external_files(weights.graph, weights.path.parent):
        target = folder / "1" / source.relative_to(weights.path.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return file


def _with_scores(
    family: Family, request: Request, folder: Path, graph: Any, spec: ModelSpec
) -> ModelSpec:
    """Return the ModelSpec with its outputs reordered so that the one that its client reads comes
    first, and with `activation` none if the file itself turns logits into scores. Raise BuildError
    if the file does so and the client computes scores from logits anyway."""
    settings = {**spec.settings, **request.settings}
    from_logits = family.from_logits(settings)
    reads_scores = from_logits or "activation" in settings_of(spec.client)
    if not reads_scores:
        return spec
    name = _scores_output(spec, settings, folder)
    if name is None:
        return spec
    outputs = sorted(spec.outputs, key=lambda output: output.name != name)
    spec = replace(spec, outputs=tuple(outputs))
    if "activation" in settings or not onnx_reader.makes_scores(graph, name):
        return spec
    if from_logits:
        raise BuildError(
            f"the file's output '{name}' comes from a softmax or a sigmoid, but its client "
            "computes scores from logits: export the network without that last operator"
        )
    return replace(spec, settings={**spec.settings, "activation": "none"})


def _scores_output(spec: ModelSpec, settings: Mapping[str, str], folder: Path) -> str | None:
    """Return the output that the client reads. Return None if no client can be made: the check of
    the finished folder says why."""
    named = {**settings, "client": spec.client}
    model = Model("own", folder, spec.inputs, spec.outputs, spec.max_batch_size, named)
    try:
        client = make_client(model)
    except (ConfigError, InvalidRequest, OSError):
        return None
    return client.outputs[0] if client else None
