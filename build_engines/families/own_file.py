"""Helps to build a user's own ONNX and TorchScript files: applies the flags, tests the file on
random rows, and copies an example."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from build_engines.errors import BuildError, UsageError
from build_engines.families.bundled import copy_example
from build_engines.families.family import Family
from build_engines.labels import write_labels
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from build_engines.runners import Runner, example_feed
from clients._labels import DEFAULT_LABELS
from clients.base import Tensors
from serving.clients import client_class

MAX_BATCH_SIZE = 8
ROWS = 3  # number of random rows in the batch on which a file is tested
LENGTHS = (32, 1024)  # sizes of variable dimensions, tried in this order until the file runs
# when the outputs for a row alone are compared with those for the row in a batch: the tolerance of
# floats, as a share of the largest value, and the share of integers that may differ
ALIKE = 0.01
SIDE = 640  # side, in pixels, of a detector's random images; YOLO's default
# An output with at most FEW_BOXES boxes is not checked: it may list only the objects that were
# found, and a random image contains none.
FEW_BOXES = 1000
# If boxes are in pixels, the largest output value for random images is at least this.
LEAST_PIXELS = 32.0
GREY = "resnet"  # the bundled model whose example is a grey image


@dataclass(frozen=True)
class Findings:
    """Describes what the build has found out about a file.

    Running it on random rows shows three things:

    - `mixes_rows`: the outputs for a row depend on the other rows. The first dimension is then
      variable but is not a batch; it may be time, for example.
    - `makes_scores`: the file itself turns logits into scores. In the first output, no number is
      negative and each row sums to 1. own_onnx.py also sets this field if the ONNX graph ends in a
      softmax or a sigmoid.
    - `largest`: the largest absolute value in the first output, or 0 if the output has at most
      FEW_BOXES boxes.

    The other fields come from the metadata that Ultralytics writes into an ONNX file: the `names`
    of the classes, the shape of a box's `keypoints` ("17,3"), and the `size` of the longer side of
    the images for which the file was exported.
    """

    mixes_rows: bool = False
    makes_scores: bool = False
    largest: float = 0.0
    names: Sequence[str] = ()
    keypoints: str = ""
    size: int = 0


def run_random_rows(family: Family, run: Runner, spec: ModelSpec) -> Findings:
    """Run the model on a batch of random rows and then on each row alone or, if it takes no
    batches, on one set of random tensors. Return what this shows, or empty Findings if the model
    fails at every length that is tried."""
    lengths = (SIDE,) if family.boxes_in_pixels else LENGTHS
    for length in lengths:
        try:
            feed = example_feed(spec, ROWS, length)
            together = run(feed)
            first = next(iter(together.values()))
            # boxes are in the last dimension but one or, in some layouts, in the last one
            has_many_boxes = max(first.shape[-2:]) > FEW_BOXES
            return Findings(
                mixes_rows=spec.max_batch_size > 0 and _mixes_rows(run, feed, together),
                makes_scores=_are_probabilities(first),
                largest=float(np.abs(first).max()) if has_many_boxes else 0.0,
            )
        except Exception:  # ONNX Runtime's and torch's exceptions have no common base class
            continue
    return Findings()


def _check_boxes(findings: Findings) -> None:
    """Raise BuildError if the boxes that a detector finds in random images are not in pixels.
    YOLOX's, for example, are offsets in the cells of a grid. If `findings.largest` is 0, there is
    nothing to check."""
    # such a file fits the client's layout, so without this check the model would return wrong boxes
    if 0 < findings.largest < LEAST_PIXELS:
        raise BuildError(
            f"the boxes are not in pixels (at most {findings.largest:.1f}), as YOLOX's and "
            "normalized ones are: build the file without --client, and decode them in a client of "
            "your own (docs/clients.md)"
        )


def _mixes_rows(run: Runner, feed: Tensors, together: Tensors) -> bool:
    """Return whether the outputs for a row change if the row is alone in its batch. `together` are
    the outputs for all rows in one batch."""
    alone = []
    for index in range(ROWS):
        row = {name: array[index : index + 1] for name, array in feed.items()}
        alone.append(run(row))
    for name, array in together.items():
        joined = np.concatenate([outputs[name] for outputs in alone])
        if not _alike(array, joined):
            return True
    return False


def _alike(a: Any, b: Any) -> bool:
    """Return whether two arrays have the same shape and, within the tolerance ALIKE, the same
    values. Some integers may differ, because they may be computed from floats, which are
    rounded."""
    if a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool(np.count_nonzero(a != b) <= ALIKE * a.size)
    largest = np.abs(b).max(initial=0)
    return np.allclose(a, b, rtol=0, atol=ALIKE * largest)


def _are_probabilities(scores: Any) -> bool:
    """Return whether the scores are floats, none is negative, and each row sums to 1."""
    if scores.dtype.kind != "f":
        return False
    rows = scores.reshape(len(scores), -1)
    return rows.min() >= 0 and np.allclose(rows.sum(1), 1, atol=1e-3)


def finish_model(
    family: Family, request: Request, folder: Path, spec: ModelSpec, findings: Findings
) -> ModelSpec:
    """Write the labels (from --labels, or else from the file's metadata), the other files of the
    family and, if the family has one, an example. Return the ModelSpec with the settings that
    follow from the file and the flags. Raise BuildError for boxes that are not in pixels, and
    UsageError for a --size that has no effect."""
    if family.boxes_in_pixels:
        _check_boxes(findings)
    settings = family.write_files(request, folder)
    declared = client_class(family.client).settings if family.client else ()
    defaults = {setting.name: setting.default for setting in declared}
    # image clients read labels.txt by default; text clients only if the setting `labels` names it
    reads_labels = defaults.get("labels") == DEFAULT_LABELS
    own_labels = findings.names if reads_labels else ()
    has_labels = write_labels(folder / DEFAULT_LABELS, own_labels, request.labels)
    if has_labels and "labels" in defaults and not reads_labels:
        settings["labels"] = DEFAULT_LABELS
    if "activation" in defaults and findings.makes_scores:
        settings["activation"] = "none"
    if "keypoints" in defaults and findings.keypoints:
        settings["keypoints"] = findings.keypoints
    # if the input is an image: height, width and channels, in the order of the input's dimensions
    image_shape = spec.inputs[0].shape[-3:] if spec.inputs else ()
    size = _free_size(request, "size" in defaults, image_shape, findings.size)
    if size:
        settings["size"] = str(size)
    if family.example:
        is_grey = bool(image_shape) and 1 in (image_shape[0], image_shape[-1])
        copy_example(GREY if is_grey else family.example, folder)
    labels = DEFAULT_LABELS if has_labels and family.classifies else ""
    return replace(spec, settings=settings, labels=labels)


def _free_size(
    request: Request, has_setting: bool, image_shape: Sequence[int], exported_size: int
) -> int:
    """Return the value for the client's setting `size`, or 0 to leave it out. If the file leaves
    height and width free, the value is --size or else `exported_size`, which may be 0.
    `has_setting` is true if the client has this setting. Raise UsageError for a --size that has no
    effect, unless it is the file's own height and width."""
    is_free = has_setting and image_shape.count(-1) >= 2
    is_fixed_to_flag = has_setting and image_shape.count(request.size) == 2
    if request.size and not is_free and not is_fixed_to_flag:
        raise UsageError(
            f"--size {request.size} has no effect: an image client reads it if the file's height "
            f"and width are free, and its input is {list(image_shape)}; leave the flag out, or "
            "export another size"
        )
    return (request.size or exported_size) if is_free else 0
