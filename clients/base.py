"""What a client is: data and two pure functions.

    bytes --codec--> instance --preprocess--> tensors --Triton--> outputs --postprocess--> prediction
          DecodingError       InvalidRequest          InferenceFailed …             (JSON)

A client never keeps a request's state on `self`: worker threads share it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from serving.codecs import Codec
from serving.errors import DecodingError, InvalidRequest, NotAcceptable
from serving.named_value import NamedValue, nearest, unknown
from serving.named_value import Names as Names

Array = NDArray[Any]
Tensors = dict[str, Array]


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a model: `datatype` in Triton's spelling (FP32, INT64, BYTES …), `shape` without the
    batch dimension, -1 for a variable dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class Model:
    """A model as Triton serves it: its folder, the `parameters` of its config.pbtxt, its tensors.

    `max_batch_size` is 0 when the model has no batch dimension; it then gets one instance per call.
    """

    name: str
    path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int = 0
    parameters: Mapping[str, str] = field(default_factory=dict)

    def file(self, name: str) -> Path:
        """Return the path of `name`, a file or folder in the model's folder. Raise InvalidRequest when it is outside
        of that folder. Links are followed: a staged folder consists of links."""
        if leads_out(name):
            raise InvalidRequest(f"model '{self.name}': '{name}' is not inside the model's folder")
        return self.path / name


def leads_out(name: str) -> bool:
    """Return whether `name` is not a path inside the folder that it belongs to."""
    return Path(name).is_absolute() or ".." in Path(name).parts


class Parameter(NamedValue):
    """A named value from config.pbtxt or a request."""

    def parse(self, value: Any) -> Any:
        """Return the checked value. Raise InvalidRequest with the parameter and the allowed values."""
        try:
            return super().parse(value)
        except ValueError as err:
            raise InvalidRequest(f"parameter '{self.name}': {err}") from None


class ModelClient(ABC):
    """What one family of models needs around Triton.

    Class attributes are the data:
      codec       reads one instance of a request (serving.codecs.IMAGE, TEXT, ROW or JSON)
      keys        the keys of an instance that is a JSON object: another one is 400, and these are named. None: those
                  that the codec reads, which for JSON are all
      example     one instance as the bytes that a caller would post. The model manager asks it at each start.
                  A file `example.*` in the model's folder replaces it.
      settings    what differs between two models of the family; read from config.pbtxt's `parameters`
      parameters  what a caller may set per request; config.pbtxt's `parameters` may change the defaults
    An attribute of each object:
      side        images may be decoded at a smaller size with sides of at least so many pixels; 0: only at full size
      columns     the names of a row's cells, in their order; () where they have none, and for what takes no rows
      outputs     the names of the model's outputs that postprocess reads: no other is sent to it; () means all
    """

    codec: ClassVar[Codec]
    keys: ClassVar[tuple[str, ...] | None] = None
    example: bytes
    settings: ClassVar[tuple[Parameter, ...]] = ()
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    side: int = 0
    columns: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __init__(self, model: Model) -> None:
        """Read the model's folder once. Raise InvalidRequest or OSError when the folder is wrong."""
        self.model = model
        self._check_names()
        self.options = {p.name: self._configured(p) for p in self.settings}
        self.defaults = {p.name: self._configured(p) for p in self.parameters}

    def _check_names(self) -> None:
        """Refuse a parameter of config.pbtxt that looks like a mistyped setting. Others may be the backend's."""
        known = {each.name for each in (*self.settings, *self.parameters)}
        for name in sorted(self.model.parameters.keys() - known):
            if near := nearest(name, known):
                raise InvalidRequest(f"config.pbtxt has the parameter '{name}'; did you mean '{near}'?")

    def check_keys(self, instance: Any) -> None:
        """Raise DecodingError for a JSON object with a key that nothing would read."""
        known = self.codec.keys if self.keys is None else self.keys
        if known is None or not isinstance(instance, dict):
            return
        if strange := sorted(instance.keys() - set(known)):
            raise DecodingError(unknown("key", strange[0], known))

    def _configured(self, parameter: Parameter) -> Any:
        raw = self.model.parameters.get(parameter.name)
        return parameter.default if raw is None else parameter.parse(raw)

    def read_parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return every request parameter with its value. Raise InvalidRequest for an unknown name or a wrong value."""
        known = {p.name: p for p in self.parameters}
        if strange := sorted(set(given) - set(known)):
            raise InvalidRequest(f"model '{self.model.name}': {unknown('parameter', strange[0], known)}")
        return self.defaults | {name: known[name].parse(value) for name, value in given.items()}

    @abstractmethod
    def preprocess(self, instances: Sequence[Any]) -> Tensors:
        """n decoded instances -> {tensor name: array of n rows}, row i made from instance i.

        Only the model's inputs are sent to Triton; `postprocess` gets all arrays.
        """

    def prepare(self, instances: Sequence[Any], parameters: Mapping[str, Any]) -> Tensors:
        """Make the tensors of a request. Override it instead of preprocess if they depend on the request's parameters,
        or if an instance makes several rows (`rows`): postprocess gets the outputs of all rows, and its `inputs` must
        say which instance a row belongs to."""
        return self.preprocess(instances)

    def rows(self, instance: Any) -> int:
        """Return about how many rows `prepare` makes of the instance; more rows mean fewer instances in a batch."""
        return 1

    @abstractmethod
    def postprocess(
        self, outputs: Tensors, inputs: Tensors, instances: Sequence[Any], parameters: Mapping[str, Any]
    ) -> list[Any]:
        """Triton's outputs for those n instances -> n JSON-able predictions, in the same order.

        `inputs` is what preprocess returned, `parameters` what read_parameters returned.
        """

    def parameter_schemas(self) -> dict[str, dict[str, Any]]:
        """Return the JSON Schema of each parameter, for GET /models and the page."""
        return {parameter.name: parameter.schema() for parameter in self.parameters}

    def draw(self, instance: Any, prediction: Any) -> Image.Image:
        """Return the instance as a picture with its prediction, for `Accept: image/jpeg` or `image/png`."""
        raise NotAcceptable(f"model '{self.model.name}' gives no pictures; ask for application/json")

    def header(self, cells: Sequence[str]) -> Sequence[str] | None:
        """Return the columns that the first line of a CSV names, () for a header with names that the model does not
        know, None for a row."""
        return None


def labels_of(model: Model, filename: str, setting: str = "labels") -> list[str]:
    """Return the lines of the file that `setting` names; none when config.pbtxt does not name one and there is no
    `filename`. Raise OSError when config.pbtxt names a missing file."""
    if setting not in model.parameters and not model.file(filename).exists():
        return []
    return read_labels(model, filename)


def label_of(labels: Sequence[str], class_id: int) -> str:
    """Return the class's label; its number when the model has no labels."""
    return labels[class_id] if labels else str(class_id)


def labels_mismatch(model: Model, labels: Sequence[str], output: str, classes: int) -> str:
    """Return an error text when the numbers of labels and classes differ; "" when they agree or one is unknown."""
    if not labels or classes in (-1, len(labels)):
        return ""
    return f"model '{model.name}' has {len(labels)} labels, its output '{output}' has {classes} classes"


def scores_output(model: Model, labels: int) -> TensorSpec:
    """Return the output that has a score for each class: of several, the first with as many scores as there are
    `labels`, else the first whose name says so, else the model's first. Raise InvalidRequest if none of these decides.
    """
    counts = {}  # of the outputs that are a list for each instance
    for spec in model.outputs:
        shape = spec.shape[int(model.max_batch_size == 0 and len(spec.shape) > 1) :]
        if sum(size != 1 for size in shape) <= 1:
            counts[spec] = max(shape, key=abs, default=1)
    first = model.outputs[0]
    fitting = [spec for spec, count in counts.items() if count == labels]
    named = [spec for spec in counts if any(word in spec.name.lower() for word in ("logit", "prob"))]
    if len(model.outputs) == 1 or first not in counts or fitting or named:
        return [*fitting, *named, first][0]
    if set(counts.values()) != {counts[first]}:
        raise InvalidRequest(
            f"model '{model.name}' has the outputs {', '.join(f'{each.name} {list(each.shape)}' for each in counts)}, "
            "and nothing says which has the scores: give it labels (--labels FILE), one for each class"
        )
    return first


def read_labels(model: Model, filename: str) -> list[str]:
    """Return the lines of a file in the model's folder: one label each, in the order of the class ids."""
    lines = model.file(filename).read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip()]


def softmax(logits: Array) -> Array:
    """Softmax over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def sigmoid(logits: Array) -> Array:
    """1 / (1 + e^-x), without an overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)))


def best(scores: Array, count: int) -> list[tuple[int, float]]:
    """Return (index, score) of the `count` highest scores of a vector, highest first."""
    if count < len(scores):
        candidates = np.argpartition(scores, -count)[-count:]
    else:
        candidates = np.arange(len(scores))
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    return [(int(index), float(scores[index])) for index in order]


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"softmax": softmax, "sigmoid": sigmoid, "none": np.asarray}
