"""Read the labels of a model's classes, and find the output that has a score for each of them."""

import re
from collections.abc import Sequence

from clients.base import Model, Parameter, TensorSpec
from serving.errors import InvalidRequest

DEFAULT_LABELS = "labels.txt"
LABELS = Parameter("labels", DEFAULT_LABELS, "file of labels in the model's folder")


def labels_of(model: Model, filename: str, setting: str = "labels") -> list[str]:
    """Return the labels in the file that `setting` names; none when config.pbtxt does not name one
    and there is no `filename`. Raise OSError when config.pbtxt names a missing file."""
    return _cleaned(names_of(model, filename, setting))


def names_of(model: Model, filename: str, setting: str) -> list[str]:
    """Return the same as they are in the file, for names that the model itself has: their blanks
    count."""
    if setting not in model.parameters and not model.file(filename).exists():
        return []
    return _lines(model, filename)


def read_labels(model: Model, filename: str) -> list[str]:
    """Return the labels in a file in the model's folder: one for each line, in the order of the
    class ids."""
    return _cleaned(_lines(model, filename))


def _lines(model: Model, filename: str) -> list[str]:
    """Return the lines, of which only a line feed ends one, without the empty lines at the end."""
    lines = [
        line.removesuffix("\r")
        for line in model.file(filename).read_bytes().decode("utf-8").split("\n")
    ]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _cleaned(lines: Sequence[str]) -> list[str]:
    """Return the lines that are not empty, without blanks around them, which a hand-written file
    may have."""
    return [line.strip() for line in lines if line.strip()]


def label_of(labels: Sequence[str], class_id: int) -> str:
    """Return the class's label; its number when the model has no labels."""
    return labels[class_id] if labels else str(class_id)


def labels_mismatch(model: Model, labels: Sequence[str], output: str, classes: int) -> str:
    """Return an error text when the numbers of labels and classes differ; "" when they agree or one
    is unknown."""
    if not labels or classes in (-1, len(labels)):
        return ""
    return (
        f"model '{model.name}' has {len(labels)} labels, "
        f"its output '{output}' has {classes} classes"
    )


def scores_output(model: Model, labels: int) -> TensorSpec:
    """Return the output that has a score for each class: of several, the first with as many scores
    as there are `labels`, else the first whose name says so, else the model's first. Raise
    InvalidRequest if none of these decides.
    """
    counts = {}  # of the outputs that are a list for each instance
    for spec in model.outputs:
        own_batch = model.max_batch_size == 0 and len(spec.shape) > 1
        shape = spec.shape[int(own_batch) :]
        if sum(size != 1 for size in shape) <= 1:
            counts[spec] = max(shape, key=abs, default=1)
    first = model.outputs[0]
    fitting = [spec for spec, count in counts.items() if count == labels]
    named = [spec for spec in counts if re.search("logit|prob", spec.name.lower())]
    if len(model.outputs) == 1 or first not in counts or fitting or named:
        return [*fitting, *named, first][0]
    if set(counts.values()) != {counts[first]}:
        names = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in counts)
        raise InvalidRequest(
            f"model '{model.name}' has the outputs {names}, and "
            "nothing says which has the scores: give it labels (--labels FILE), one for each class"
        )
    return first
