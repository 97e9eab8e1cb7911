"""Defines what a client is: data and two pure functions. Worker threads share a client, so it
stores nothing about a request in `self`. Loops whose length depends on the caller's data call
`check_time`, which ends a request that has no time left.

bytes --codec--> instance --prepare--> tensors --Triton--> outputs --postprocess--> prediction

A wrong instance raises DecodingError, a wrong parameter InvalidRequest, and a wrong output
InferenceFailed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from serving.budget import check_time as check_time
from serving.budget import in_time as in_time
from serving.codecs import Codec
from serving.errors import ConfigError, DecodingError, InvalidRequest, NotAcceptable
from serving.named_value import NamedValue, nearest, unknown
from serving.named_value import Names as Names
from serving.repository.paths import named_file

Array = NDArray[Any]
Floats = NDArray[np.float32]
Tensors = dict[str, Array]
Instances = Sequence[Any]  # as the client's codec decodes them
Values = Mapping[str, Any]  # of parameters or settings, by name


@dataclass(frozen=True)
class TensorSpec:
    """Describes a tensor of a model. `datatype` is Triton's name for the type (FP32, INT64, BYTES
    …). `shape` omits Triton's batch dimension, and has -1 for a variable dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class Model:
    """Describes a model that Triton serves: its folder, the `parameters` of its config.pbtxt, and
    its tensors. If the model has no batch dimension, `max_batch_size` is 0, and the model gets one
    instance per call."""

    name: str
    path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int = 0
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def takes_nothing(self) -> bool:
        """Return whether a request may leave out all inputs. Triton does not allow that for a model
        with a batch dimension, because the number of rows would be unknown."""
        return not self.max_batch_size and all(spec.optional for spec in self.inputs)

    def file(self, name: str) -> Path:
        """Return the real path of `name`, a file or folder in the model's folder. It need not
        exist, and links may lead out of the folder. Raise InvalidRequest if `name` itself leads out
        of it, or if the path is a FIFO, a socket, a device or a circle of links."""
        try:
            return named_file(self.path, name)
        except ConfigError as err:
            raise InvalidRequest(f"model '{self.name}': {err}") from err


class TooManyRows(Exception):
    """Raised if a batch would have more than MOST_ROWS rows. Only its first `fitting` instances
    fit."""

    def __init__(self, fitting: int) -> None:
        super().__init__(fitting)
        self.fitting = fitting


class Parameter(NamedValue):
    """A named value from config.pbtxt or a request."""

    def parse(self, value: Any) -> Any:
        """Return the checked value. Raise an InvalidRequest that names the parameter and the
        allowed values."""
        try:
            return super().parse(value)
        except ValueError as err:
            raise InvalidRequest(f"parameter '{self.name}': {err}") from err


class ModelClient(ABC):
    """Prepares the inputs of a task for Triton, and turns Triton's outputs into predictions. A
    class sets the attributes that are the same for all of its models; `__init__` sets those that
    depend on the model."""

    # reads one instance of a request (serving.codecs.IMAGE, TEXT, ROW, JSON …)
    codec: Codec
    # the keys that an instance may have if it is a JSON object; others are answered with 400. If
    # this is None, these are the keys that the codec reads (the codec JSON reads all keys).
    keys: tuple[str, ...] | None = None
    # the name of the task, with which the routes of other APIs find a model
    task: str = ""
    # an instance as a caller would send it, with which the model is tested before it is served; a
    # file `example.*` in the model's folder replaces it
    example: bytes
    # values that differ between models of the task, read from `parameters` in config.pbtxt
    settings: tuple[Parameter, ...] = ()
    # values that a caller may set in a request; `parameters` in config.pbtxt may change the
    # defaults
    parameters: tuple[Parameter, ...] = ()
    # images may be decoded at a reduced size, with sides of at least this many pixels; if this is
    # 0, they are decoded at full size
    side: int = 0
    # the names of a row's cells, in the order of the cells; () if they have no names
    columns: tuple[str, ...] = ()
    # default values of a row's cells, for formats that may omit cells (LibSVM)
    absent: tuple[str, ...] = ()
    # the names of the model's outputs that postprocess reads; () means all
    outputs: tuple[str, ...] = ()
    # the output to return if the reply is a single array (npy); "" if the client names none
    main_output: str = ""

    def __init__(self, model: Model) -> None:
        """Read the settings and, in a subclass, files in the model's folder. Raise InvalidRequest
        if a parameter in config.pbtxt is invalid, or is probably a misspelled setting. A subclass
        also raises InvalidRequest or OSError if the model or a file does not suit it."""
        names = {value.name for value in (*self.settings, *self.parameters)}
        texts = model.parameters
        for name in sorted(texts.keys() - names):  # a backend's parameter, or a mistyped setting
            near = nearest(name, names)
            if near:
                raise InvalidRequest(
                    f"config.pbtxt has the parameter '{name}'; did you mean '{near}'?"
                )
        self.model = model
        self.options = _values(self.settings, texts)
        # the values of parameters that a request omits
        self.defaults = _values(self.parameters, texts)

    def instance_keys(self) -> tuple[str, ...]:
        """Return the keys that an instance may have if it is an object, or () if all keys are
        allowed, such as the names of a table's columns."""
        return self.keys or self.codec.keys or ()

    def check_keys(self, instance: Any) -> None:
        """Raise DecodingError for a JSON object with an unknown key."""
        keys = self.codec.keys if self.keys is None else self.keys
        if keys is None or not isinstance(instance, dict):
            return
        strange = instance.keys() - set(keys)
        if strange:
            raise DecodingError(unknown("key", min(strange), keys))

    def read_parameters(self, values: Values) -> dict[str, Any]:
        """Return every request parameter with its value. Raise InvalidRequest for an unknown name
        or a wrong value."""
        parameters = {parameter.name: parameter for parameter in self.parameters}
        if strange := values.keys() - parameters:
            raise InvalidRequest(
                f"model '{self.model.name}': {unknown('parameter', min(strange), parameters)}"
            )
        parsed = {name: parameters[name].parse(value) for name, value in values.items()}
        return self.defaults | parsed

    @abstractmethod
    def prepare(self, instances: Instances, parameters: Values) -> Tensors:
        """Return {tensor name: array of n rows} for n decoded instances. Row i belongs to instance
        i. Only the model's inputs are sent to Triton; `postprocess` gets all arrays. If an instance
        may need several rows (see `rows`), the arrays must also tell `postprocess` which instance
        each row belongs to."""

    def rows(self, instance: Any) -> int:
        """Return roughly how many rows `prepare` creates for the instance. This number limits how
        many instances are put into a batch."""
        return 1

    def length(self, opened: Instances, parameters: Values) -> int:
        """Return roughly how many characters `prepare` reads from instances that the codec has
        opened. Requests with many characters are processed one after the other, so that other
        requests do not have to wait for them."""
        return sum(map(self.codec.length, opened))

    @abstractmethod
    def postprocess(
        self, outputs: Tensors, inputs: Tensors, instances: Instances, parameters: Values
    ) -> list[Any]:
        """Return the predictions for n instances, in the same order. JSON must be able to represent
        them. `outputs` come from Triton, `inputs` from `prepare`, and `parameters` from
        `read_parameters`."""

    def parameter_schemas(self) -> dict[str, dict[str, Any]]:
        """Return the JSON Schema of each parameter, for GET /models and the page."""
        return {parameter.name: parameter.schema() for parameter in self.parameters}

    def draw(self, instance: Any, prediction: Any) -> Image.Image:
        """Return the instance's picture with the prediction drawn on it, for `Accept: image/jpeg`
        or `image/png`. Raise NotAcceptable if the client cannot draw."""
        raise NotAcceptable(
            f"model '{self.model.name}' cannot draw its answers; ask for application/json"
        )

    def header(self, cells: Sequence[str]) -> Sequence[str] | None:
        """Return the names of the columns if `cells`, the first line of a CSV file, are a header.
        Return () if the header names none of the model's columns, and None if the cells are a
        row."""
        return None


def _values(declared: Sequence[Parameter], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the value of each parameter: the one in `texts`, or else the default."""
    values = {}
    for parameter in declared:
        text = texts.get(parameter.name)
        values[parameter.name] = parameter.default if text is None else parameter.parse(text)
    return values


def softmax(logits: Array) -> Array:
    """Return the softmax over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def sigmoid(logits: Array) -> Array:
    """Return 1 / (1 + e^-x), without an overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)))


def best(scores: Array, count: int) -> list[tuple[int, float]]:
    """Return the `count` highest scores of a vector as tuples (index, score), highest first. Equal
    scores are ordered by index."""
    candidates = np.arange(len(scores))
    if count < len(scores):  # then sort only the scores that can be among the highest
        least = np.partition(scores, -count)[-count]
        candidates = np.flatnonzero(~(scores < least))  # keeps NaN
    order = np.argsort(-scores[candidates], kind="stable")
    indices = candidates[order[:count]]
    return list(zip(indices.tolist(), scores[indices].tolist(), strict=True))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": np.asarray,
}
