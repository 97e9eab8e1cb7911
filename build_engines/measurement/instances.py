"""Instances to calibrate INT8 with and to compare engines on: bundled ones or the user's.

Calibration and comparison never share an instance: calibration uses training digits, comparison held-out digits;
texts are others too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from build_engines.errors import BuildError, UsageError
from build_engines.measurement.runners import row_of
from build_engines.measurement.scoring import Boxes
from build_engines.model_folder.labels import read_lines
from clients.base import ModelClient, Tensors

PICTURES, PAGES = 64, 16  # to calibrate with
HELD_OUT_PAGES_SEED = 100
DIGITS = [str(digit) for digit in range(10)]
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
    "Great service and lovely food!",
    "The server answered the request in four milliseconds.",
    "Paris is the capital of France.",
    "She has played the violin since she was six years old.",
    "My order never arrived and nobody answers the phone.",
    "The bridge was closed for repairs all summer.",
    "Two dogs run across a field of snow.",
    "Turn left at the church.",
    "The patient complained of a sore throat and a mild fever.",
    "This film is a waste of two hours.",
    "Whales are mammals that live in the sea.",
    "Please send the signed contract by Friday.",
    "The old library smells of dust and leather.",
    "Solar panels cover most of the roof.",
)

CALIBRATION_TEXTS = (
    "The train from Hamburg was forty minutes late.",
    "How do I reset my password?",
    "Quarterly revenue grew by 12 percent, mostly in Asia.",
    "She poured the tea and said nothing for a while.",
    "Install the package, then restart the service.",
    "A cat sleeps on the warm roof of a car.",
    "The court rejected the appeal on procedural grounds.",
    "Heavy rain and strong winds are expected along the coast tonight, with gusts of up to 90 kilometres per hour.",
    "I loved the battery, but the screen scratches easily.",
    "Water boils at a lower temperature on a mountain.",
    "The museum is free on the first Sunday of every month.",
    "Can you recommend a dentist near the station?",
    "He scored twice in the last five minutes of the match.",
    "The novel follows three generations of a family of clockmakers who lose, and find again, the house they built.",
    "Please confirm the delivery address before noon.",
    "Antibiotics do not help against viruses.",
)


@dataclass(frozen=True)
class Sample:
    """One instance and its truth where that is known: a class id, or boxes."""

    instance: Any
    truth: Any = None


def for_calibration(client: ModelClient, family: str, source: Path | None) -> Iterator[Tensors]:
    """Inputs for the model, batch dimension included, one instance each."""
    instances = _users_instances(family, source) if source else _bundled(family)
    for given in instances:
        instance = text_instance(client, given) if family == "bert" else given
        made = row_of(client.model, client.preprocess([instance]))
        yield {name: array for name, array in made.items() if name in _names(client)}


def text_instance(client: ModelClient, text: str, masked: bool = False) -> Any:
    """A text as an instance of the client's task; `masked` puts a mask behind it where the task fills one."""
    task = client.options["task"]
    if task == "fill-mask" and masked:
        return f"{text} {client.tokenizer.mask}"  # type: ignore[attr-defined]
    if task == "question-answering":
        return {"question": "What is this about?", "context": text}
    if task == "zero-shot-classification":
        return {"text": text, "candidate_labels": ["food", "travel", "health", "business"]}
    if task == "text-ranking":
        return {"query": text, "documents": list(TEXTS[:8])}
    return text


def _names(client: ModelClient) -> set[str]:
    return {spec.name for spec in client.model.inputs}


def _bundled(family: str) -> Iterator[Any]:
    if family == "bert":
        yield from CALIBRATION_TEXTS
    elif family == "yolov5":
        with _explained():
            from build_engines.digits.pages import training_pages
        yield from (page.image for page in islice(training_pages(7), PAGES))
    else:
        with _explained():
            from build_engines.digits.images import training
        yield from (image for image, _ in islice(training(0), PICTURES))


@contextmanager
def _explained() -> Iterator[None]:
    """Says what to do when a package for the bundled generators is missing."""
    try:
        yield
    except ModuleNotFoundError as err:
        raise BuildError(
            f"the bundled pictures are made with the package '{err.name}', which is not installed: install it (make "
            "dev), or name a folder of your own images with --calibration or --samples"
        ) from err


def for_comparison(client: ModelClient, family: str, source: Path | None, count: int) -> list[Sample]:
    """At most `count` instances to compare engines on, with the truth where the model reads digits."""
    if family == "bert":
        texts = islice(_users_instances(family, source), count) if source else TEXTS[:count]
        return [Sample(text_instance(client, text, masked=not source)) for text in texts]
    if source:
        return [Sample(instance) for instance in islice(_users_instances(family, source), count)]
    reads_digits = getattr(client, "labels", None) == DIGITS
    return list(_pages(reads_digits, count) if family == "yolov5" else _pictures(reads_digits, count))


def _pictures(with_truth: bool, count: int) -> Iterator[Sample]:
    with _explained():
        from build_engines.digits.images import held_out
    for image, label in held_out(count):
        yield Sample(image, label if with_truth else None)


def _pages(with_truth: bool, count: int) -> Iterator[Sample]:
    with _explained():
        from build_engines.digits.held_out_pages import held_out_pages
    for page in islice(held_out_pages(HELD_OUT_PAGES_SEED), count):
        truth = Boxes(page.boxes, page.labels, np.ones(len(page.labels)))
        yield Sample(page.image, truth if with_truth else None)


def _users_instances(family: str, source: Path) -> Iterator[Any]:
    """A folder's images, or the lines of a text file."""
    if family == "bert":
        yield from _lines(source)
        return
    if not source.is_dir():
        raise UsageError(f"{source} is no folder of images")
    files = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        raise UsageError(f"there is no image in {source} ({', '.join(sorted(SUFFIXES))})")
    for file in files:
        try:
            yield Image.open(file).convert("RGB")
        except (OSError, UnidentifiedImageError) as err:
            raise BuildError(f"{file} cannot be read as an image: {err}") from err


def _lines(source: Path) -> list[str]:
    try:
        lines = read_lines(source)
    except (OSError, UnicodeDecodeError) as err:
        raise UsageError(f"{source} cannot be read as lines of text: {err}") from err
    if not lines:
        raise UsageError(f"there is no text in {source}")
    return lines
