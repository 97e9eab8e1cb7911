"""An engine against the fp32 reference that it was made from, with limits that must hold.

| Model | Measured | Limit |
|---|---|---|
| classes of an image or text | share of equal top-1 answers; accuracy where the truth is known | 0.98; 0.005 lost |
| detection | mAP50 and mAP50-95 where the truth is known, else with the reference as the truth | 0.02 lost; 0.90 |
| embedding | mean cosine | 0.98 |
| classes of pixels | what is common to the shares of the classes | 0.98 |
| fill-mask, entities, answers, rankings | share of equal first tokens, entities, answers, documents | 0.90 |
| tensors | mean cosine of each output | 0.99 |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from build_engines.errors import BuildError, first_line
from build_engines.measurement import instances
from build_engines.measurement.instances import Sample
from build_engines.measurement.runners import Runner, row_of, rows_of
from build_engines.measurement.scoring import boxes_of, cosine, mean_average_precision
from build_engines.measurement.timing import example_feed
from build_engines.progress import over
from clients.base import Model, ModelClient, Tensors

TOP1_AGREEMENT, ACCURACY_LOSS = 0.98, 0.005
MAP50_LOSS, MAP50_AGREEMENT = 0.02, 0.90
EMBEDDING_COSINE, TOKEN_AGREEMENT, TENSOR_COSINE = 0.98, 0.90, 0.99
COUNTS = {"resnet": 359, "yolov5": 100}  # of samples, by family; 60 for the others
ALL_BOXES = {"confidence": 0.001, "iou": 0.6}  # what average precision is measured with


@dataclass(frozen=True)
class Score:
    """A measured value and the least allowed value; without a limit it is only printed."""

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
        return compare_tensors(model, engine, reference)
    family = model.parameters.get("client", "")
    found = instances.for_comparison(client, family, source, count or COUNTS.get(family, 60))
    ours, theirs = ([_predict(client, run, s) for s in over(found, "comparing")] for run in (engine, reference))
    return _MEASURES[_kind(client, family)](found, ours, theirs)


def _kind(client: ModelClient, family: str) -> str:
    return str(client.options["task"]) if family == "bert" else family


def _predict(client: ModelClient, run: Runner, sample: Sample) -> Any:
    """The predictions that a caller would get; for a detector, of all boxes."""
    known = {p.name for p in client.parameters}
    parameters = client.read_parameters({k: v for k, v in ALL_BOXES.items() if k in known})
    inputs = client.preprocess([sample.instance])
    try:
        outputs = rows_of(client.model, run(row_of(client.model, inputs)))
    except Exception as err:  # ONNX Runtime's exceptions have no base of their own
        raise BuildError(f"the model fails on a sample: {first_line(err)}") from err
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
    return [Score("cosine", cosine(mine, other), EMBEDDING_COSINE, f"{len(found)} samples")]


def _segments(found: Sequence[Sample], ours: Sequence[Any], theirs: Sequence[Any]) -> list[Score]:
    mine, other = ([{s["class_id"]: s["share"] for s in p["segments"]} for p in each] for each in (ours, theirs))
    common = [sum(min(share, b.get(index, 0)) for index, share in a.items()) for a, b in zip(mine, other, strict=True)]
    return [Score("common shares of classes", float(np.mean(common)), TOP1_AGREEMENT, f"{len(found)} images")]


def _fills(found: Sequence[Sample], ours: Sequence[Any], theirs: Sequence[Any]) -> list[Score]:
    mine, other = ([_first_token(p) for p in predictions] for predictions in (ours, theirs))
    return [Score("top-1 tokens", _share(mine, other), TOKEN_AGREEMENT, f"{len(found)} texts")]


def _entities(found: Sequence[Sample], ours: Sequence[Any], theirs: Sequence[Any]) -> list[Score]:
    mine, other = ([[(e["label"], e["start"]) for e in p["entities"]] for p in each] for each in (ours, theirs))
    return [Score("equal entities", _share(mine, other), TOKEN_AGREEMENT, f"{len(found)} texts")]


def _answers(found: Sequence[Sample], ours: Sequence[Any], theirs: Sequence[Any]) -> list[Score]:
    mine, other = ([[a["answer"] for a in p["answers"][:1]] for p in each] for each in (ours, theirs))
    return [Score("equal answers", _share(mine, other), TOKEN_AGREEMENT, f"{len(found)} texts")]


def _rankings(found: Sequence[Sample], ours: Sequence[Any], theirs: Sequence[Any]) -> list[Score]:
    mine, other = ([p["ranking"][0]["index"] for p in each] for each in (ours, theirs))
    return [Score("equal first documents", _share(mine, other), TOKEN_AGREEMENT, f"{len(found)} queries")]


def _first_token(prediction: Any) -> int:
    return int(prediction["masks"][0][0]["token_id"])


def compare_tensors(model: Model, engine: Runner, reference: Runner) -> list[Score]:
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
    "detr": _detections,
    "image_embedding": _embeddings,
    "semantic_segmentation": _segments,
    "embedding": _embeddings,
    "fill-mask": _fills,
    "token-classification": _entities,
    "question-answering": _answers,
    "zero-shot-classification": _classes,
    "text-ranking": _rankings,
}
