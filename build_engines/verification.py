"""An engine against the fp32 reference that it was made from, with limits that must hold.

| Model | Measured | Limit |
|---|---|---|
| classes of an image or text | share of equal top-1 answers; accuracy where the truth is known | 0.98; 0.005 lost |
| detection | mAP50 and mAP50-95 where the truth is known, else with the reference as the truth | 0.02 lost; 0.90 |
| embedding | mean cosine | 0.98 |
| fill-mask | share of equal top-1 tokens | 0.90 |
| tensors | mean cosine of each output | 0.99 |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from build_engines import samples
from build_engines.building import reference_folder
from build_engines.downloads import digest
from build_engines.draft import PLAN, BuildError
from build_engines.plan_runner import plan_latency
from build_engines.progress import over
from build_engines.repository_models import StoredModel
from build_engines.running import Runner, example_feed, latencies, latency, onnx_runner
from build_engines.samples import Sample
from build_engines.scoring import boxes_of, cosine, mean_average_precision
from clients.base import Model, ModelClient, Tensors

TOP1_AGREEMENT, ACCURACY_LOSS = 0.98, 0.005
MAP50_LOSS, MAP50_AGREEMENT = 0.02, 0.90
EMBEDDING_COSINE, TOKEN_AGREEMENT, TENSOR_COSINE = 0.98, 0.90, 0.99
ALL_BOXES = {"confidence": 0.001, "iou": 0.6}  # what average precision is measured with


@dataclass(frozen=True)
class Score:
    """A measured value and the least that it may be; without a limit it is told only."""

    name: str
    value: float
    limit: float | None = None
    note: str = ""

    @property
    def passed(self) -> bool:
        return self.limit is None or self.value >= self.limit

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" (limit {self.limit:.4f}{'' if self.passed else ', FAILED'})"
        return f"{self.name} {self.value:.4f}{limit}{f', {self.note}' if self.note else ''}"


def compare(
    model: Model,
    client: ModelClient | None,
    engine: Runner,
    reference: Runner,
    count: int = 0,
    source: Path | None = None,
) -> list[Score]:
    """The scores of `engine` on at most `count` instances (0: as many as are usual), of `source` where it is given."""
    if client is None:
        return _tensors(model, engine, reference)
    family = model.parameters.get("client", "")
    found = samples.held_out(client, family, source, count or COUNTS.get(family, 60))
    ours, theirs = ([_predict(client, run, s) for s in over(found, "comparing")] for run in (engine, reference))
    return _MEASURES[_kind(client, family)](found, ours, theirs)


def verify(stored: StoredModel, reference: Path | None, source: Path | None, count: int) -> list[Score]:
    """The scores of a built model against `reference`, by default the fp32 model that its build kept."""
    engine, fp32 = stored.runner(), onnx_runner(reference or _reference(stored))
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
    """Random weights answer nonsense, which a step of INT8 turns into another: told by tensors, without a limit."""
    if stored.record.get("made_from", {}).get("weights") == "random":
        return [replace(score, limit=None, note="random weights") for score in _tensors(stored.model, engine, fp32)]
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


COUNTS = {"resnet": 359, "yolov5": 100}


def _kind(client: ModelClient, family: str) -> str:
    return str(client.options["task"]) if family == "bert" else family


def _predict(client: ModelClient, run: Runner, sample: Sample) -> Any:
    """What a caller would get, of all boxes where there are boxes."""
    known = {p.name for p in client.parameters}
    parameters = client.read_parameters({k: v for k, v in ALL_BOXES.items() if k in known})
    inputs = client.preprocess([sample.instance])
    try:
        outputs = run(inputs)
    except Exception as err:  # ONNX Runtime's exceptions have no base of their own
        raise BuildError(f"the model fails on a sample: {str(err).splitlines()[0]}") from err
    return client.postprocess(outputs, inputs, [sample.instance], parameters)[0]


def _classes(found: Sequence[Sample], ours: Sequence[Any], theirs: Sequence[Any]) -> list[Score]:
    mine, other = ([p["classes"][0]["class_id"] for p in predictions] for predictions in (ours, theirs))
    scores = [Score("top-1 agreement", _share(mine, other), TOP1_AGREEMENT, f"{len(found)} samples")]
    if all(sample.truth is not None for sample in found):
        truths = [sample.truth for sample in found]
        before = _share(other, truths)
        scores.append(Score("accuracy", _share(mine, truths), before - ACCURACY_LOSS, f"fp32 {before:.4f}"))
    return scores


def _share(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    return sum(bool(a == b) for a, b in zip(ours, theirs, strict=True)) / max(len(ours), 1)


def _detections(found: Sequence[Sample], ours: Sequence[Any], theirs: Sequence[Any]) -> list[Score]:
    mine, other = ([boxes_of(p["detections"]) for p in predictions] for predictions in (ours, theirs))
    pages = f"{len(found)} images"
    if all(sample.truth is not None for sample in found):
        truths = [sample.truth for sample in found]
        (m50, m5095), (r50, r5095) = mean_average_precision(mine, truths), mean_average_precision(other, truths)
        return [
            Score("mAP50", m50, r50 - MAP50_LOSS, f"fp32 {r50:.4f}, {pages}"),
            Score("mAP50-95", m5095, None, f"fp32 {r5095:.4f}"),
        ]
    certain = [boxes_of([d for d in p["detections"] if d["score"] > 0.25]) for p in theirs]
    if not any(len(truth.classes) for truth in certain):
        raise BuildError("fp32 finds nothing on the samples; name images with objects: --samples FOLDER")
    m50, m5095 = mean_average_precision(mine, certain)
    return [
        Score("mAP50 with fp32 as the truth", m50, MAP50_AGREEMENT, pages),
        Score("mAP50-95 with fp32 as the truth", m5095),
    ]


def _embeddings(found: Sequence[Sample], ours: Sequence[Any], theirs: Sequence[Any]) -> list[Score]:
    mine, other = (np.array([p["embedding"] for p in predictions]) for predictions in (ours, theirs))
    return [Score("cosine", cosine(mine, other), EMBEDDING_COSINE, f"{len(found)} texts")]


def _fills(found: Sequence[Sample], ours: Sequence[Any], theirs: Sequence[Any]) -> list[Score]:
    mine, other = ([_first_token(p) for p in predictions] for predictions in (ours, theirs))
    return [Score("top-1 tokens", _share(mine, other), TOKEN_AGREEMENT, f"{len(found)} texts")]


def _first_token(prediction: Any) -> int:
    return int(prediction["masks"][0][0]["token_id"])


def _tensors(model: Model, engine: Runner, reference: Runner) -> list[Score]:
    """On random tensors, for a model without a client."""
    feed: Tensors = example_feed(model, batch=min(4, model.max_batch_size) or 1)
    ours, theirs = engine(feed), reference(feed)
    return [
        Score(
            f"cosine of '{name}'",
            cosine(np.atleast_2d(ours[name]), np.atleast_2d(theirs[name])),
            TENSOR_COSINE,
            "random input",
        )
        for name in theirs
    ]


_MEASURES: dict[str, Callable[[Sequence[Sample], Sequence[Any], Sequence[Any]], list[Score]]] = {
    "resnet": _classes,
    "text-classification": _classes,
    "yolov5": _detections,
    "embedding": _embeddings,
    "fill-mask": _fills,
}
