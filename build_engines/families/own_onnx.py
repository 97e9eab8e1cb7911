"""Builds a model from a user's own ONNX file. The tensors are read from the file."""

import shutil
from dataclasses import replace
from pathlib import Path

from build_engines import onnx_reader
from build_engines.errors import UsageError
from build_engines.families.family import Family
from build_engines.families.onnx_tensors import open_file, with_tensors_of
from build_engines.families.own_file import MAX_BATCH_SIZE, Findings, finish_model, run_random_rows
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from build_engines.weights import Weights


def write_model(family: Family, weights: Weights, request: Request, folder: Path) -> ModelSpec:
    """Copy the file to 1/model.onnx, together with the files that hold its weights, and add the
    files of `finish_model`. Return the ModelSpec. A run on random rows shows what the graph may not
    say: whether the first dimension is a batch, whether the file turns logits into scores, and
    whether boxes are in pixels. Raise UsageError for a --max-batch-size above 0 if the outputs for
    a row depend on the other rows."""
    graph = weights.graph
    file = _copy_file(weights, folder)
    opened = open_file(file)
    spec = with_tensors_of(request, graph, opened, ModelSpec(max_batch_size=MAX_BATCH_SIZE))
    findings = Findings()
    if opened and (spec.max_batch_size or family.classifies or family.boxes_in_pixels):
        findings = run_random_rows(family, opened, spec)
    if findings.mixes_rows:
        if request.max_batch_size > 0:
            raise UsageError(
                f"--max-batch-size {request.max_batch_size}: rows have other answers together "
                "than alone"
            )
        # declare the first dimension like any other that varies
        without_batches = replace(request, max_batch_size=0)
        spec = with_tensors_of(without_batches, graph, opened, spec)
    # The run recognizes scores by their sum, which is not 1 after a sigmoid. Without this check, a
    # file that ends in a sigmoid would be served with a second activation.
    ends_in_scores = onnx_reader.makes_scores(graph, spec.outputs[0].name)
    findings = replace(
        findings,
        makes_scores=findings.makes_scores or ends_in_scores,
        names=onnx_reader.names_of(graph),
        keypoints=onnx_reader.keypoints_of(graph),
        size=onnx_reader.size_of(graph),
    )
    return finish_model(family, request, folder, spec, findings)


def _copy_file(weights: Weights, folder: Path) -> Path:
    """Copy the file, and the other files that hold its weights. Return the path of the file's
    copy."""
    file = folder / "1" / "model.onnx"
    shutil.copyfile(weights.path, file)
    for source in onnx_reader.external_files(weights.graph, weights.path.parent):
        target = folder / "1" / source.relative_to(weights.path.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return file
