"""Defines how an engine is compared with fp32, and on which samples. A table in
docs/build_engines.md lists the measures and their limits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from build_engines.errors import BuildError, UsageError
from build_engines.labels import read_lines
from clients.base import ModelClient
from serving.codecs import Limits
from serving.errors import DecodingError

OVERLAP = 0.5  # minimum overlap (IoU) of two boxes that count as the same object
HELD_OUT = 4  # INT8 is compared on every 4th sample and calibrated on the others
LEAST_SAMPLES = 8  # minimum number of samples to split between calibration and comparison
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
BUILT_IN_TEXTS = (
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
class Samples:
    """Defines the samples on which a family's engines are calibrated and compared. `find` lists the
    samples in a folder or file, and `instances` converts samples to the client's instances. Without
    a folder or file, engines are compared on the `built_in` instances, if the family has any."""

    find: Callable[[Path], Sequence[Any]]
    instances: Callable[[ModelClient, Sequence[Any]], Iterator[Any]]
    built_in: Callable[[ModelClient], Iterator[Any]] | None = None

    def read(
        self, client: ModelClient, source: Path, held_out: bool | None = None
    ) -> Iterator[Any]:
        """Return the instances of `source`: those held out of calibration if `held_out` is True,
        the others if it is False, or all if it is None. Raise UsageError if `source` cannot be
        read, or has no samples, or too few to hold some out. The iterator raises BuildError at an
        image that cannot be read."""
        samples = self.find(source)
        if held_out is not None:
            samples = _select(source, samples, held_out)
        return self.instances(client, samples)


def _select(source: Path, samples: Sequence[Any], held_out: bool) -> list[Any]:
    """Return the samples that are held out of calibration if `held_out` is true, or else the
    others. Raise UsageError if there are too few."""
    if len(samples) < LEAST_SAMPLES:
        raise UsageError(
            f"{source} has {len(samples)} of the {LEAST_SAMPLES} samples that calibrate INT8 and "
            "show that it answers as fp32 does: some dozens of the kind that the model gets "
            "are best; --no-compare takes fewer"
        )
    part = []
    for index, sample in enumerate(samples):
        is_held_out = index % HELD_OUT == HELD_OUT - 1
        if is_held_out == held_out:
            part.append(sample)
    return part


def _image_files(source: Path) -> list[Path]:
    if not source.is_dir():
        raise UsageError(f"{source} is not a folder of images")
    files = sorted(path for path in source.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        raise UsageError(f"there is no image in {source} ({suffixes})")
    return files


def _open_images(client: ModelClient, files: Sequence[Path]) -> Iterator[Any]:
    for file in files:
        try:
            yield client.codec.from_bytes(file.read_bytes(), Limits())
        except (OSError, DecodingError) as err:
            raise BuildError(f"{file} cannot be read as an image: {err}") from err


def _text_lines(source: Path) -> list[str]:
    try:
        lines = read_lines(source)
    except (OSError, UnicodeDecodeError) as err:
        raise UsageError(f"{source} cannot be read as lines of text: {err}") from err
    if not lines:
        raise UsageError(f"there is no text in {source}")
    return lines


def _text_instances(client: ModelClient, lines: Sequence[str]) -> Iterator[Any]:
    return (_text_instance(client, text) for text in lines)


def _built_in_texts(client: ModelClient) -> Iterator[Any]:
    """Yield the built-in texts as instances, each with a mask if the task is fill-mask."""
    end = ""
    if client.options["task"] == "fill-mask":
        end = f" {client.tokenizer.mask}"  # type: ignore[attr-defined]
    for text in BUILT_IN_TEXTS:
        yield _text_instance(client, f"{text}{end}")


def _text_instance(client: ModelClient, text: str) -> Any:
    """Return an instance of the client's task that contains `text`."""
    task = client.options["task"]
    if task == "question-answering":
        return {"question": "What is this about?", "context": text}
    if task == "zero-shot-classification":
        return {"text": text, "candidate_labels": ["food", "travel", "health", "business"]}
    if task == "text-ranking":
        return {"query": text, "documents": list(BUILT_IN_TEXTS)}
    return text


IMAGES = Samples(_image_files, _open_images)
SENTENCES = Samples(_text_lines, _text_instances, _built_in_texts)


def cosine(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Return the mean cosine similarity between each row of `ours` and the same row of `theirs`.
    The similarity of equal rows is 1, even if they are all zeros."""
    a = ours.reshape(len(ours), -1).astype(np.float64)
    b = theirs.reshape(len(theirs), -1).astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines = (a * b).sum(1) / np.where(lengths > 0, lengths, 1.0)
    return float(np.where((a == b).all(1), 1.0, cosines).mean())


@dataclass(frozen=True)
class Measure:
    """Measures how similar two predictions are. `similarity` returns at most 1, which is its value
    for equal predictions, or None if neither prediction detects anything. `limit` is the lowest
    mean similarity that passes."""

    name: str
    limit: float
    similarity: Callable[[Any, Any], float | None]


def _equality(name: str, limit: float, read: Callable[[Any], Any]) -> Measure:
    """Return a measure that is 1 if `read` returns the same for both predictions, else 0."""
    return Measure(name, limit, lambda ours, theirs: float(read(ours) == read(theirs)))


def _cosine_of_embeddings(ours: Any, theirs: Any) -> float:
    return cosine(np.array([ours["embedding"]]), np.array([theirs["embedding"]]))


def _common_shares(ours: Any, theirs: Any) -> float:
    """Return the sum, over all classes, of the smaller of the class's two shares of the image."""
    their_shares = {segment["class_id"]: segment["share"] for segment in theirs["segments"]}
    common = 0.0
    for segment in ours["segments"]:
        common += min(segment["share"], their_shares.get(segment["class_id"], 0))
    return common


def _share_of_pairs(ours: Any, theirs: Any) -> float | None:
    """Return the share of all detections in both predictions that have a counterpart in the other
    one, of the same class and with enough overlap. Return None if there are no detections."""
    unpaired = list(theirs["detections"])
    total = len(ours["detections"]) + len(unpaired)
    paired = 0
    for mine in ours["detections"]:
        same_class = [other for other in unpaired if other["class_id"] == mine["class_id"]]
        matches = [other for other in same_class if _do_overlap(mine["box"], other["box"])]
        if matches:
            unpaired.remove(matches[0])
            paired += 2
    return paired / total if total else None


def _do_overlap(box: dict[str, float], other: dict[str, float]) -> bool:
    """Return whether the boxes' intersection has at least OVERLAP times the area of their union.
    Return False if the union has no area."""
    low = [max(box[side], other[side]) for side in ("xmin", "ymin")]
    high = [min(box[side], other[side]) for side in ("xmax", "ymax")]
    intersection = _area(*low, *high)
    # a box's values are in the order of _area's parameters
    union = _area(*box.values()) + _area(*other.values()) - intersection
    return intersection >= OVERLAP * union > 0


def _area(left: float, top: float, right: float, bottom: float) -> float:
    return max(right - left, 0) * max(bottom - top, 0)


CLASSES = _equality("equal top classes", 0.98, lambda answer: answer["classes"][0]["class_id"])
VECTORS = Measure("cosine", 0.98, _cosine_of_embeddings)
DETECTIONS = Measure("detections in common", 0.90, _share_of_pairs)
PIXELS = Measure("common shares of classes", 0.98, _common_shares)
TEXT_MEASURES = {  # keyed by the text client's task
    "text-classification": CLASSES,
    "zero-shot-classification": CLASSES,
    "embedding": VECTORS,
    "fill-mask": _equality(
        "equal first tokens", 0.90, lambda answer: answer["masks"][0][0]["token_id"]
    ),
    "token-classification": _equality(
        "equal entities",
        0.90,
        lambda answer: [(entity["label"], entity["start"]) for entity in answer["entities"]],
    ),
    "question-answering": _equality(
        "equal answers", 0.90, lambda answer: [each["answer"] for each in answer["answers"][:1]]
    ),
    "text-ranking": _equality(
        "equal first documents", 0.90, lambda answer: answer["ranking"][0]["index"]
    ),
}
