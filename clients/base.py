"""What a client is: data and two pure functions.

    bytes --codec--> instance --preprocess--> tensors --Triton--> outputs --postprocess--> prediction
          DecodingError       InvalidRequest          InferenceFailed …             (JSON)

A client never keeps a request's state on `self`: worker threads share it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray
from PIL import Image

from serving.codecs import Codec
from serving.errors import InvalidRequest, NotAcceptable
from serving.named_value import NamedValue
from serving.named_value import Names as Names

Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a model: `datatype` in Triton's spelling (FP32, INT64, BYTES …), `shape` without the
    batch dimension, -1 where it varies."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class Model:
    """A model as Triton serves it: its folder, the `parameters` of its config.pbtxt, its tensors.

    `max_batch_size` is 0 when the model has no batch dimension (one instance per call then).
    """

    name: str
    path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int = 0
    parameters: Mapping[str, str] = field(default_factory=dict)


class Parameter(NamedValue):
    """A named value from config.pbtxt or a request."""

    def parse(self, value: Any) -> Any:
        """The checked value; raises InvalidRequest that names the parameter and what is allowed."""
        try:
            return super().parse(value)
        except ValueError as err:
            raise InvalidRequest(f"parameter '{self.name}': {err}") from None


class ModelClient(ABC):
    """What one family of models needs around Triton.

    Class attributes are the data:
      codec       how one instance of a request is read (serving.codecs.IMAGE, TEXT or JSON)
      example     one instance as raw bytes, as a caller would post it: warm-up, /ping's canary and the tests
                  use it. A file `example.*` in the model's folder takes its place.
      settings    what differs between two models of the family; read from config.pbtxt's `parameters`
      parameters  what a caller may set per request; config.pbtxt's `parameters` may change the defaults
    An instance's own:
      side        pixels that each side of an image must keep where it may be decoded smaller than it is; 0: it may not
    """

    codec: ClassVar[Codec]
    example: ClassVar[bytes]
    settings: ClassVar[tuple[Parameter, ...]] = ()
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    side: int = 0

    def __init__(self, model: Model) -> None:
        """Reads the model's folder once; raises InvalidRequest or OSError where the folder is wrong."""
        self.model = model
        self.options = {p.name: self._configured(p) for p in self.settings}
        self.defaults = {p.name: self._configured(p) for p in self.parameters}

    def _configured(self, parameter: Parameter) -> Any:
        raw = self.model.parameters.get(parameter.name)
        return parameter.default if raw is None else parameter.parse(raw)

    def read_parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every request parameter with its value; raises InvalidRequest on an unknown or a wrong one."""
        known = {p.name: p for p in self.parameters}
        if unknown := sorted(set(given) - set(known)):
            raise InvalidRequest(
                f"unknown parameter '{unknown[0]}'; model '{self.model.name}' takes: "
                f"{', '.join(sorted(known)) or 'none'}"
            )
        return self.defaults | {name: known[name].parse(value) for name, value in given.items()}

    @abstractmethod
    def preprocess(self, instances: Sequence[Any]) -> Tensors:
        """n decoded instances -> {tensor name: array of n rows}, row i made from instance i.

        Arrays whose name is not an input of the model are not sent; `postprocess` sees them all.
        """

    @abstractmethod
    def postprocess(
        self, outputs: Tensors, inputs: Tensors, instances: Sequence[Any], parameters: Mapping[str, Any]
    ) -> list[Any]:
        """Triton's outputs of those n instances -> n predictions that JSON can hold, in the same order.

        `inputs` is what preprocess returned, `parameters` what read_parameters returned.
        """

    def draw(self, instance: Any, prediction: Any) -> Image.Image:
        """The instance as a picture with its prediction on it, for `Accept: image/jpeg` or `image/png`."""
        raise NotAcceptable(f"model '{self.model.name}' gives no pictures; ask for application/json")


def labels_of(model: Model, filename: str) -> list[str]:
    """The labels; none when the folder names no `labels` and has no such file. OSError when the one named is absent."""
    if "labels" not in model.parameters and not (model.path / filename).exists():
        return []
    return read_labels(model, filename)


def read_labels(model: Model, filename: str) -> list[str]:
    """One label per line of a file in the model's folder, in the order of the class ids."""
    lines = (model.path / filename).read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip()]
