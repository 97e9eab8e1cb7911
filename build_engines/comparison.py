"""`verify`: compare an engine with the fp32 model that it was made from; each limit must hold.

| Model | Measured | Limit |
|---|---|---|
| classes of an image or text | share of equal top classes | 0.98 |
| detection | detections in common, of all that either finds | 0.90 |
| embedding | mean cosine | 0.98 |
| classes of pixels | overlap of the shares of the classes | 0.98 |
| fill-mask, entities, answers, rankings | share of equal first results | 0.90 |
| no client, or an image model without --samples | mean cosine of each output | 0.99 |
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from build_engines.errors import BuildError, UsageError, first_line
from build_engines.model_folder import StoredModel, digest, read_lines, reference_folder
from build_engines.runners import Runner, example_feed, onnx_runner, row_of, rows_of, runner_of
from clients.base import Model, ModelClient, Tensors
from serving.codecs import Limits
from serving.model_status.served_model import ServedModel

TEXTS_CLIENT, TABLES_CLIENT = "bert", "table"
SAMPLED = (TEXTS_CLIENT, "resnet", "yolov5")  # clients whose engines are calibrated on samples
TENSOR_COSINE, OVERLAP = 0.99, 0.5
# INT8 is compared on each 4th sample and calibrated on the others, of at least 8
HELD_OUT, LEAST = 4, 8
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "A man is eating food.",
    "Someone in a gorilla costume is playing the drums.",
    "The recipe needs two cups of flour, an egg and a pinch of salt.",
    "He drove to the stadium in the rain.",
    "Stock markets fell on Monday after the central bank's report.",
    "What time does the last train leave?",
    "The committee will meet again in March to vote on the proposal.",
    "I would not recommend this hotel to anyone.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
)


@dataclass(frozen=True)
class Score:
    """A measured value, the least allowed value, and what it was measured on."""

    name: str
    value: float
    limit: float
    note: str

    @property
    def passed(self) -> bool:
        return self.value >= self.limit

    def __str__(self) -> str:
        failed = "" if self.passed else ", FAILED"
        return f"{self.name} {self.value:.4f} (limit {self.limit:.4f}{failed}), {self.note}"


def verify(
    stored: StoredModel, reference: Path | None, source: Path | None, count: int
) -> list[Score]:
    """Return the scores of a built model against `reference`, by default the fp32 model that its
    build kept."""
    if not reference:
        sha256 = stored.record.get("source_sha256", "")
        kept = reference_folder(sha256) / "model.onnx"
        known = (
            path
            for path in (kept, stored.version / "model.onnx")
            if path.is_file() and digest(path) == sha256
        )
        if not (reference := next(known, None)):
            raise BuildError(
                f"the fp32 model that {stored.folder.name} was made from is not in "
                f"{kept.parent}: build it again with --force, or name it with --reference ONNX"
            )
    engine, fp32 = runner_of(stored), onnx_runner(reference)
    return compare(stored.model, stored.client(), engine, fp32, count, source)


def compare(
    model: Model,
    client: ModelClient | None,
    engine: Runner,
    reference: Runner,
    count: int = 0,
    source: Path | None = None,
    held_out: bool | None = None,
) -> list[Score]:
    """Return the scores of `engine` on at most `count` samples of `source`, 0 for all; `held_out`
    is as for `_part`.

    Without `source` texts are compared on sentences of our own, images on the model's example,
    others on random tensors.
    """
    family = model.parameters.get("client", "")
    if client is None or family == TABLES_CLIENT:
        return compare_tensors(
            example_feed(model, min(4, model.max_batch_size) or 1), engine, reference
        )
    if source is None and family != TEXTS_CLIENT:
        example = client.codec.from_bytes(ServedModel(model, client).example(), Limits())
        feed = row_of(model, client.preprocess([example]))
        return compare_tensors(feed, engine, reference, "the model's example")
    samples = list(islice(_samples(client, family, source, held_out), count or None))
    ours, theirs = ([_predict(client, run, s) for s in samples] for run in (engine, reference))
    measure = MEASURES[str(client.options["task"]) if family == TEXTS_CLIENT else family]
    alike = [
        value
        for pair in zip(ours, theirs, strict=True)
        if (value := measure.alike(*pair)) is not None
    ]
    if not alike:
        raise BuildError(
            f"fp32 finds nothing in {len(samples)} images of {source}: name images with "
            "objects; a build takes these with --no-compare"
        )
    return [Score(measure.name, float(np.mean(alike)), measure.limit, f"{len(samples)} samples")]


def compare_tensors(
    feed: Tensors, engine: Runner, reference: Runner, note: str = "random input"
) -> list[Score]:
    """Return the cosine of each output."""
    ours, theirs = _run(engine, feed), _run(reference, feed)
    return [
        Score(
            f"cosine of '{name}'",
            cosine(np.atleast_2d(ours[name]), np.atleast_2d(array)),
            TENSOR_COSINE,
            note,
        )
        for name, array in theirs.items()
    ]


def _predict(client: ModelClient, run: Runner, instance: Any) -> Any:
    """Return the prediction that a caller would get."""
    inputs = client.preprocess([instance])
    outputs = rows_of(client.model, _run(run, row_of(client.model, inputs)))
    return client.postprocess(outputs, inputs, [instance], client.read_parameters({}))[0]


def _run(run: Runner, feed: Tensors) -> Tensors:
    try:
        return run(feed)
    except BuildError:
        raise
    except Exception as err:  # ONNX Runtime's exceptions have no common base class
        raise BuildError(f"the model fails on a sample: {first_line(err)}") from err


def for_calibration(
    client: ModelClient, family: str, source: Path | None, held_out: bool | None = None
) -> Iterator[Tensors]:
    """Yield the client's tensors for each instance of `source`, batch dimension included;
    `held_out` as for `_part`."""
    if source is None:
        raise UsageError(
            "INT8 is calibrated: name a folder of images, or a file of texts, with --calibration"
        )
    names = {spec.name for spec in client.model.inputs}
    for instance in _samples(client, family, source, held_out):
        rows = row_of(client.model, client.preprocess([instance]))
        yield {name: array for name, array in rows.items() if name in names}


def _part(source: Path, samples: list[Any], held_out: bool | None) -> list[Any]:
    """Return the samples held out of calibration (True), the other ones (False), or all (None).
    Raise UsageError."""
    if held_out is not None and len(samples) < LEAST:
        raise UsageError(
            f"{source} has {len(samples)} of the {LEAST} samples that calibrate INT8 and "
            "show that it answers as fp32 does: some dozens of the kind that the model gets "
            "are best; --no-compare takes fewer"
        )
    return [
        sample
        for index, sample in enumerate(samples)
        if held_out in (None, index % HELD_OUT == HELD_OUT - 1)
    ]


def _samples(
    client: ModelClient, family: str, source: Path | None, held_out: bool | None = None
) -> Iterator[Any]:
    """Yield the images of a folder, or the lines of a file as instances of the client's task."""
    if family == TEXTS_CLIENT:
        for text in _part(source, _lines(source), held_out) if source else TEXTS:
            yield text_instance(client, text, masked=source is None)
        return
    if source is None or not source.is_dir():
        raise UsageError(f"{source} is not a folder of images")
    files = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        raise UsageError(f"there is no image in {source} ({', '.join(sorted(SUFFIXES))})")
    for file in _part(source, files, held_out):
        try:
            yield Image.open(file).convert("RGB")
        except (OSError, UnidentifiedImageError) as err:
            raise BuildError(f"{file} cannot be read as an image: {err}") from err


def text_instance(client: ModelClient, text: str, masked: bool = False) -> Any:
    """Return an instance of the client's task; `masked` appends a mask if the task fills one."""
    task = client.options["task"]
    if task == "fill-mask" and masked:
        return f"{text} {client.tokenizer.mask}"  # type: ignore[attr-defined]
    if task == "question-answering":
        return {"question": "What is this about?", "context": text}
    if task == "zero-shot-classification":
        return {"text": text, "candidate_labels": ["food", "travel", "health", "business"]}
    if task == "text-ranking":
        return {"query": text, "documents": list(TEXTS)}
    return text


def _lines(source: Path) -> list[str]:
    try:
        lines = read_lines(source)
    except (OSError, UnicodeDecodeError) as err:
        raise UsageError(f"{source} cannot be read as lines of text: {err}") from err
    if not lines:
        raise UsageError(f"there is no text in {source}")
    return lines


def cosine(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Return the mean cosine of the rows; two rows of zeros are equal."""
    a, b = (array.reshape(len(array), -1).astype(np.float64) for array in (ours, theirs))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    both_zero = ~a.any(1) & ~b.any(1)
    return float(
        np.where(both_zero, 1.0, (a * b).sum(1) / np.where(lengths > 0, lengths, 1.0)).mean()
    )


@dataclass(frozen=True)
class Measure:
    """Measures how alike two predictions are, from 0 to 1, or None if both are empty."""

    name: str
    limit: float
    alike: Callable[[Any, Any], float | None]


def _equal(name: str, limit: float, read: Callable[[Any], Any]) -> Measure:
    return Measure(name, limit, lambda ours, theirs: float(read(ours) == read(theirs)))


def _same_vector(ours: Any, theirs: Any) -> float:
    return cosine(np.array([ours["embedding"]]), np.array([theirs["embedding"]]))


def _same_shares(ours: Any, theirs: Any) -> float:
    mine, other = ({s["class_id"]: s["share"] for s in each["segments"]} for each in (ours, theirs))
    return float(sum(min(share, other.get(index, 0)) for index, share in mine.items()))


def _same_boxes(ours: Any, theirs: Any) -> float | None:
    """Return the share of both models' detections that have a partner of the same class at the same
    position."""
    free = list(theirs["detections"])
    total = len(ours["detections"]) + len(free)
    for mine in ours["detections"]:
        matches = [
            each
            for each in free
            if each["class_id"] == mine["class_id"] and overlap(mine["box"], each["box"])
        ]
        if matches:
            free.remove(matches[0])
    return 2 * (len(theirs["detections"]) - len(free)) / total if total else None


def overlap(box: dict[str, float], other: dict[str, float]) -> bool:
    """Return whether two boxes share at least half of the area that they cover together."""
    (left, top, right, bottom), (x0, y0, x1, y1) = (
        (each["xmin"], each["ymin"], each["xmax"], each["ymax"]) for each in (box, other)
    )
    common = max(min(right, x1) - max(left, x0), 0) * max(min(bottom, y1) - max(top, y0), 0)
    together = (right - left) * (bottom - top) + (x1 - x0) * (y1 - y0) - common
    return common >= OVERLAP * together > 0


_CLASSES = _equal("equal top classes", 0.98, lambda answer: answer["classes"][0]["class_id"])
_VECTORS = Measure("cosine", 0.98, _same_vector)
_BOXES = Measure("detections in common", 0.90, _same_boxes)
MEASURES = {  # by client or, for texts, by task
    "resnet": _CLASSES,
    "text-classification": _CLASSES,
    "zero-shot-classification": _CLASSES,
    "yolov5": _BOXES,
    "detr": _BOXES,
    "image_embedding": _VECTORS,
    "embedding": _VECTORS,
    "semantic_segmentation": Measure("common shares of classes", 0.98, _same_shares),
    "fill-mask": _equal(
        "equal first tokens", 0.90, lambda answer: answer["masks"][0][0]["token_id"]
    ),
    "token-classification": _equal(
        "equal entities",
        0.90,
        lambda answer: [(each["label"], each["start"]) for each in answer["entities"]],
    ),
    "question-answering": _equal(
        "equal answers", 0.90, lambda answer: [each["answer"] for each in answer["answers"][:1]]
    ),
    "text-ranking": _equal(
        "equal first documents", 0.90, lambda answer: answer["ranking"][0]["index"]
    ),
}
