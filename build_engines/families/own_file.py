"""Helps to build a user's own ONNX and TorchScript files: reads the flags, observes a run, and
copies an example."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from build_engines.errors import BuildError, UsageError
from build_engines.families.family import Family
from build_engines.labels import write_labels
from build_engines.model_spec import ModelSpec
from build_engines.request import REPOSITORY, Request
from build_engines.runners import Runner, example_feed
from clients._labels import DEFAULT_LABELS
from clients.base import Model, Tensors
from serving.clients import client_class

MAX_BATCH_SIZE = 8
ROWS = 3  # random rows that run together
LENGTHS = (32, 1024)  # sizes of the rows' variable dimensions, tried in this order
SIDE = 640  # pixels: the side of a detector's random images, as in YOLO by default
# the most by which a row's answers may differ between running alone and running with others, as a
# share of the largest value
ALIKE = 0.01
# An output with at most this many boxes may list only the objects that were found, and a random
# image has none.
FEW_BOXES = 1000
LEAST_PIXELS = 32.0  # at least one box of a random image is this large or this far from the corner
GREY = "resnet"  # the model of the repository whose example is grey


def settings_of(client: str) -> dict[str, Any]:
    """Return the default of each setting of a client, or {} if there is no client."""
    declared = client_class(client).settings if client else ()
    return {setting.name: setting.default for setting in declared}


def spec_without_tensors(
    family: Family, request: Request, folder: Path, names: Iterable[str] = ()
) -> ModelSpec:
    """Write the labels (from the flag, or else the file's own `names`) and the family's other
    files. Return the ModelSpec, still without tensors."""
    settings = family.write_files(request, folder)
    default = settings_of(family.client).get("labels")
    own = tuple(names) if default == DEFAULT_LABELS else ()
    has_labels = write_labels(folder / DEFAULT_LABELS, own, request.labels)
    if has_labels and default == "":
        settings["labels"] = DEFAULT_LABELS
    return ModelSpec(
        client=request.named_client or family.client,
        max_batch_size=MAX_BATCH_SIZE,
        settings=settings,
        labels=DEFAULT_LABELS if has_labels and family.classifies else "",
    )


@dataclass(frozen=True)
class Findings:
    """The findings of a run on random rows.

    `mixes_rows`: rows are answered differently together than alone, so the first dimension varies
    but is not a batch; it may be time, for example. `are_shares`: each row of the first output has
    no number below 0 and sums to 1, as after a softmax. `largest`: the largest number of the first
    output, or 0 if it has few boxes.
    """

    mixes_rows: bool = False
    are_shares: bool = False
    largest: float = 0.0


def run_random_rows(family: Family, run: Runner, spec: ModelSpec) -> Findings:
    """Run random rows together and, if they are a batch, alone. If the model does not run on them,
    return Findings without any."""
    model = Model("", Path(), spec.inputs, spec.outputs, spec.max_batch_size, {})
    lengths = (SIDE,) if family.boxes_in_pixels else LENGTHS
    for length in lengths:
        try:
            return _findings(run, example_feed(model, ROWS, length), spec.max_batch_size > 0)
        except Exception:  # ONNX Runtime's and torch's exceptions have no common base class
            continue
    return Findings()


def _findings(run: Runner, feed: Tensors, is_batch: bool) -> Findings:
    together = run(feed)
    first = next(iter(together.values()))
    has_boxes = max(first.shape[-2:]) > FEW_BOXES
    return Findings(
        mixes_rows=is_batch and _mixes_rows(run, feed, together),
        are_shares=_are_shares(first),
        largest=float(np.abs(first).max()) if has_boxes else 0.0,
    )


def _mixes_rows(run: Runner, feed: Tensors, together: Tensors) -> bool:
    """Return whether the rows are answered differently alone than in the run `together`."""
    alone = []
    for index in range(ROWS):
        row = {name: array[index : index + 1] for name, array in feed.items()}
        alone.append(run(row))
    for name, array in together.items():
        joined = np.concatenate([outputs[name] for outputs in alone])
        if not _alike(array, joined):
            return True
    return False


def check_boxes(family: Family, findings: Findings) -> None:
    """Raise BuildError if the boxes of random images are not in pixels. YOLOX's, for example, are
    offsets in the cells of a grid. A file that did not run is accepted."""
    if family.boxes_in_pixels and 0 < findings.largest < LEAST_PIXELS:
        raise BuildError(
            f"the boxes are not in pixels (at most {findings.largest:.1f}), as YOLOX's and "
            "normalized ones are: build the file without --client, and decode them in a client of "
            "your own (docs/clients.md)"
        )


def _alike(a: Any, b: Any) -> bool:
    """Return whether two arrays are equal up to rounding. A few integers may differ, because
    rounding can change those that are computed from floats."""
    if a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool(np.count_nonzero(a != b) <= ALIKE * a.size)
    largest = np.abs(b).max(initial=0)
    return np.allclose(a, b, rtol=0, atol=ALIKE * largest)


def _are_shares(scores: Any) -> bool:
    sums = scores.sum(-1)
    return scores.min() >= 0 and np.allclose(sums, 1, atol=1e-3)


def with_size(request: Request, spec: ModelSpec, trained: int = 0) -> ModelSpec:
    """Return the ModelSpec, with the setting `size` if the input's height and width are dynamic.
    Its value is that of the flag, or else `trained`, the size in the file. Raise UsageError if the
    flag has no effect."""
    sides = spec.inputs[0].shape[-3:] if spec.inputs else ()
    takes_size = "size" in settings_of(spec.client)
    is_free = takes_size and sides.count(-1) >= 2
    is_fixed_so = takes_size and sides.count(request.size) == 2
    if request.size and not is_free and not is_fixed_so:
        what = f"its input is {list(sides)}"
        if not takes_size:
            what = "the network takes no image through a client"
        raise UsageError(
            f"--size {request.size} has no effect: {what}; leave the flag out, or export "
            "another size"
        )
    size = request.size or trained
    if not (is_free and size):
        return spec
    return replace(spec, settings={**spec.settings, "size": str(size)})


def copy_example(family: Family, folder: Path, spec: ModelSpec) -> None:
    """Copy the example of the family, if it has one, or a grey picture if the network takes one
    channel."""
    if not family.example:
        return
    sides = spec.inputs[0].shape[-3:] if spec.inputs else ()
    is_grey = bool(sides) and 1 in (sides[0], sides[-1])
    name = GREY if is_grey else family.example
    for example in (REPOSITORY / name).glob("example.*"):
        shutil.copyfile(example, folder / example.name)
