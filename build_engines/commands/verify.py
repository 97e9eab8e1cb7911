"""`verify`: a model's file against the fp32 model that it was made from; 1 when a limit fails."""

import argparse
from dataclasses import replace
from pathlib import Path

from build_engines.building.references import reference_folder
from build_engines.errors import BuildError
from build_engines.measurement.comparison import Score, compare, compare_tensors
from build_engines.measurement.isolated import served_runner
from build_engines.measurement.plan_runner import plan_latency
from build_engines.measurement.runners import Runner, onnx_runner
from build_engines.measurement.timing import example_feed, latencies, latency
from build_engines.model_folder.spec import PLAN
from build_engines.model_folder.stored import StoredModel, open_model
from build_engines.weights.digests import digest


def run(parsed: argparse.Namespace) -> int:
    """Prints the scores."""
    scores = verify(open_model(parsed.model, parsed.repository), parsed.reference, parsed.samples, parsed.count)
    for score in scores:
        print(score)
    return 0 if all(score.passed for score in scores) else 1


def verify(stored: StoredModel, reference: Path | None, source: Path | None, count: int) -> list[Score]:
    """The scores of a built model against `reference`, by default the fp32 model that its build kept."""
    engine, fp32 = served_runner(stored), onnx_runner(reference or _reference(stored))
    speed = _speed(stored, engine, fp32)
    return [*_scores(stored, engine, fp32, count, source), speed]


def _speed(stored: StoredModel, engine: Runner, fp32: Runner) -> Score:
    feed = example_feed(stored.model, 1, length=128)
    if stored.config.platform == PLAN:
        theirs, ours, where = latency(lambda: fp32(feed)), plan_latency(stored.file, feed), " on the CPU"
    else:
        theirs, ours, where = *latencies([lambda: fp32(feed), lambda: engine(feed)]), ""
    return Score("times as fast as fp32", theirs / ours, note=f"{ours:.2f} ms, fp32{where} {theirs:.2f} ms")


def _scores(stored: StoredModel, engine: Runner, fp32: Runner, count: int, source: Path | None) -> list[Score]:
    """A model with random weights answers nonsense, so its tensors are compared, without a limit."""
    if stored.record.get("made_from", {}).get("weights") == "random":
        return [
            replace(score, limit=None, note="random weights") for score in compare_tensors(stored.model, engine, fp32)
        ]
    return compare(stored.model, stored.client(), engine, fp32, count, source)


def _reference(stored: StoredModel) -> Path:
    source = stored.record.get("source_sha256", "")
    kept = reference_folder(source) / "model.onnx"
    for path in (kept, stored.version / "model.onnx"):
        if source and path.is_file() and digest(path) == source:
            return path
    if not source:
        raise BuildError(
            f"{stored.folder} was not built here (it has no build.json), so its fp32 model is not known; "
            "name it with --reference ONNX, or build it"
        )
    raise BuildError(
        f"the fp32 model that {stored.folder.name} was made from is not in {kept.parent}: build it again "
        "with --force, or name it with --reference ONNX"
    )
