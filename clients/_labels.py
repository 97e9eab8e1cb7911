"""Reads the labels of a model's classes, and finds the output that has a score for each class."""

import re
from collections.abc import Sequence
from math import prod

from clients.base import Model, Parameter, TensorSpec
from serving.errors import InvalidRequest

DEFAULT_LABELS = "labels.txt"
LABELS = Parameter("labels", DEFAULT_LABELS, "file of labels in the model's folder")


def labels_of(model: Model, filename: str, setting: str = "labels") -> list[str]:
    """Return the labels in `filename`, one for each line that is not blank, in the order of the
    class ids. Blanks around labels are removed. If the file does not exist, return an empty list,
    or raise OSError if config.pbtxt names the file in `setting`."""
    return [name.strip() for name in names_of(model, filename, setting) if name.strip()]


def names_of(model: Model, filename: str, setting: str) -> list[str]:
    """Return the lines of `filename`, without blank lines at the end. Blanks around a name are
    kept, because they may be part of the name of a column or class. Only a line feed, or a carriage
    return and a line feed, ends a line. A missing file is handled as in labels_of. Raise
    UnicodeDecodeError if the file is not UTF-8."""
    file = model.file(filename)
    if setting not in model.parameters and not file.exists():
        return []
    text = file.read_bytes().decode("utf-8")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def label_of(labels: Sequence[str], class_id: int) -> str:
    """Return the class's label, or its number if the model has no labels."""
    return labels[class_id] if labels else str(class_id)


def labels_mismatch(model: Model, labels: Sequence[str], output: str, classes: int) -> str:
    """Return an error message if the numbers of labels and classes differ, or "" if they are equal
    or one of them is unknown."""
    if not labels or classes in (-1, len(labels)):
        return ""
    return (
        f"model '{model.name}' has {len(labels)} labels (--labels FILE), "
        f"its output '{output}' has {classes} classes"
    )


def scores_output(model: Model, labels: int) -> TensorSpec:
    """Return the output that has a score for each class. If there are several outputs, choose the
    first with as many scores as there are `labels`, or else the first whose name contains "logit"
    or "prob", or else the first output. Raise InvalidRequest if only the last rule applies, and the
    outputs have different numbers of scores."""
    if len(model.outputs) == 1:
        return model.outputs[0]
    counts = {}  # the number of scores of each output that has one list per instance
    for spec in model.outputs:
        # without max_batch_size, the shape begins with the model's own batch dimension
        has_batch = model.max_batch_size == 0 and len(spec.shape) > 1
        shape = spec.shape[int(has_batch) :]
        if sum(size != 1 for size in shape) <= 1:
            counts[spec] = prod(shape)
    fitting = [spec for spec, count in counts.items() if count == labels]
    named = [spec for spec in counts if re.search("logit|prob", spec.name.lower())]
    if fitting:
        return fitting[0]
    if named:
        return named[0]
    first = model.outputs[0]
    if first in counts and set(counts.values()) != {counts[first]}:
        names = [f"{spec.name} {list(spec.shape)}" for spec in counts]
        raise InvalidRequest(
            f"model '{model.name}' has the outputs {', '.join(names)}, and "
            "nothing says which has the scores: give it labels (--labels FILE), one for each class"
        )
    return first
