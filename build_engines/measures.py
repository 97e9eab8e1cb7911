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
LEAST = 8  # minimum number of samples to split between calibration and comparison
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
class Samples:
    """Defines the samples on which a family's engines are calibrated and compared. `find` lists the
    samples in a folder or file, and `instances` converts samples to the client's instances. Without
    a folder or file, the `built_in` instances are used, if the family has any."""

    find: Callable[[Path | None], Sequence[Any]]
    instances: Callable[[ModelClient, Sequence[Any]], Iterator[Any]]
    built_in: Callable[[ModelClient], Iterator[Any]] | None = None

    def read(
        self, client: ModelClient, source: Path | None, held_out: bool | None = None
    ) -> Iterator[Any]:
        """Return the instances of `source`: those held out of calibration if `held_out` is True,
        the others if it is False, or all if it is None. Without a source, return all built-in ones.
        Raise UsageError if there are no samples, or too few to hold some out."""
        if source is None and self.built_in:
            return self.built_in(client)
        return self.instances(client, _part(source, self.find(source), held_out))


def _part(source: Path | None, samples: Sequence[Any], held_out: bool | None) -> list[Any]:
    if held_out is None:
        return list(samples)
    if len(samples) < LEAST:
        raise UsageError(
            f"{source} has {len(samples)} of the {LEAST} samples that calibrate INT8 and "
            "show that it answers as fp32 does: some dozens of the kind that the model gets "
            "are best; --no-compare takes fewer"
        )
    return [
        sample
        for index, sample in enumerate(samples)
        if (index % HELD_OUT == HELD_OUT - 1) == held_out
    ]


def _images(source: Path | None) -> list[Path]:
    if source is None or not source.is_dir():
        raise UsageError(f"{source} is not a folder of images")
    files = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        raise UsageError(f"there is no image in {source} ({', '.join(sorted(SUFFIXES))})")
    return files


def _open_images(client: ModelClient, files: Sequence[Path]) -> Iterator[Any]:
    for file in files:
        try:
            yield client.codec.from_bytes(file.read_bytes(), Limits())
        except (OSError, DecodingError) as err:
            raise BuildError(f"{file} cannot be read as an image: {err}") from err


def _lines(source: Path | None) -> list[str]:
    try:
        lines = read_lines(source or Path())
    except (OSError, UnicodeDecodeError) as err:
        raise UsageError(f"{source} cannot be read as lines of text: {err}") from err
    if not lines:
        raise UsageError(f"there is no text in {source}")
    return lines


def _texts(client: ModelClient, lines: Sequence[str]) -> Iterator[Any]:
    """Return the lines as instances of the client's task."""
    return (text_instance(client, text) for text in lines)


def _sentences(client: ModelClient) -> Iterator[Any]:
    """Yield the built-in sentences as instances, each with a mask if the task is fill-mask."""
    end = ""
    if client.options["task"] == "fill-mask":
        end = f" {client.tokenizer.mask}"  # type: ignore[attr-defined]
    for text in TEXTS:
        yield text_instance(client, f"{text}{end}")


def text_instance(client: ModelClient, text: str) -> Any:
    """Return an instance of the client's task that contains `text`."""
    task = client.options["task"]
    if task == "question-answering":
        return {"question": "What is this about?", "context": text}
    if task == "zero-shot-classification":
        return {"text": text, "candidate_labels": ["food", "travel", "health", "business"]}
    if task == "text-ranking":
        return {"query": text, "documents": list(TEXTS)}
    return text


IMAGES = Samples(_images, _open_images)
SENTENCES = Samples(_lines, _texts, _sentences)


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
    """Measures how similar two predictions are. `alike` returns their similarity, which is 1 for
    equal predictions, or None if neither detects anything. `limit` is the lowest mean that
    passes."""

    name: str
    limit: float
    alike: Callable[[Any, Any], float | None]


def _equal(name: str, limit: float, read: Callable[[Any], Any]) -> Measure:
    return Measure(name, limit, lambda ours, theirs: float(read(ours) == read(theirs)))


def _same_vector(ours: Any, theirs: Any) -> float:
    vectors = [np.array([each["embedding"]]) for each in (ours, theirs)]
    return cosine(*vectors)


def _same_shares(ours: Any, theirs: Any) -> float:
    """Return the sum, over all classes, of the smaller of the class's two shares of the image."""
    shares = {each["class_id"]: each["share"] for each in theirs["segments"]}
    common = 0.0
    for each in ours["segments"]:
        common += min(each["share"], shares.get(each["class_id"], 0))
    return common


def _same_boxes(ours: Any, theirs: Any) -> float | None:
    """Return the share of all detections in both predictions that have a counterpart in the other
    one, of the same class and with enough `overlap`. Return None if there are no detections."""
    free = list(theirs["detections"])
    total = len(ours["detections"]) + len(free)
    paired = 0
    for mine in ours["detections"]:
        same_class = [each for each in free if each["class_id"] == mine["class_id"]]
        matches = [each for each in same_class if overlap(mine["box"], each["box"])]
        if matches:
            free.remove(matches[0])
            paired += 2
    return paired / total if total else None


def overlap(box: dict[str, float], other: dict[str, float]) -> bool:
    """Return whether the boxes' intersection has at least OVERLAP times the area of their union."""
    low = [max(box[side], other[side]) for side in ("xmin", "ymin")]
    high = [min(box[side], other[side]) for side in ("xmax", "ymax")]
    common = _area(*low, *high)
    together = _area(*box.values()) + _area(*other.values()) - common
    return common >= OVERLAP * together > 0


def _area(left: float, top: float, right: float, bottom: float) -> float:
    return max(right - left, 0) * max(bottom - top, 0)


CLASSES = _equal("equal top classes", 0.98, lambda answer: answer["classes"][0]["class_id"])
VECTORS = Measure("cosine", 0.98, _same_vector)
DETECTIONS = Measure("detections in common", 0.90, _same_boxes)
PIXELS = Measure("common shares of classes", 0.98, _same_shares)
OF_TASKS = {  # keyed by the text client's task
    "text-classification": CLASSES,
    "zero-shot-classification": CLASSES,
    "embedding": VECTORS,
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
