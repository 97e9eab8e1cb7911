"""Reads bodies that are only a JSON list or string, as SDKs send them. Also converts nested lists
in other JSON bodies to tensors, and the data frames of MLflow's clients to instances."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from clients.base import TensorSpec
from serving.bodies import schemas
from serving.bodies.decoder import Item
from serving.bodies.instances import Instances, items_of
from serving.bodies.kserve import TensorBody, only_input
from serving.bodies.schemas import JsonObject
from serving.bodies.values import flattened, types_of
from serving.budget import MOST_DIMENSIONS, in_time
from serving.codecs import ROW
from serving.errors import DecodingError, InvalidRequest
from serving.job import Job
from serving.model_status.served_model import ServedModel
from serving.named_value import unknown
from serving.request import UNNAMED, Request, Target
from serving.request_memory import KEY, OBJECT, reserve


@dataclass(frozen=True)
class BareBody:
    """A body that is a JSON list or string. `length` is its size in bytes."""

    value: list[Any] | str
    length: int
    named: ClassVar[Target] = UNNAMED

    def bind(self, served: ServedModel, request: Request) -> Job:
        # if the client could not be created, require_client raises the error that says why
        has_no_client = not (served.client or served.client_error)
        if has_no_client:
            return tensors_of(served, self.value, self.length).bind(served, request)
        codec = served.require_client().codec
        values = [self.value] if isinstance(self.value, str) else self.value
        begins_with_cell = bool(values) and not isinstance(values[0], list | dict)
        if codec is ROW and begins_with_cell:
            values = [values]  # the list contains the cells of a single row
        return Instances(items_of(values, "body", codec.part)).bind(served, request)


def tensors_of(
    served: ServedModel, value: Any, length: int, parameters: JsonObject | None = None
) -> TensorBody:
    """Convert a JSON value to tensors for a model without a client. Nested lists become the model's
    only input, and an object {input: nested lists} becomes several inputs. The body has `length`
    bytes, and `parameters` are the request parameters in it. Raise InvalidRequest if the names, the
    number or the nesting of the inputs is wrong."""
    model = served.model
    specs = {spec.name: spec for spec in model.inputs}
    if not isinstance(value, Mapping):
        spec = only_input(model, "a list", '{"inputs": {name: list}}, or KServe v2 tensors')
        value = {spec.name: value}
    inputs = []
    for name, data in value.items():
        if name not in specs:
            raise InvalidRequest(f"model '{model.name}': {unknown('input', name, specs)}")
        inputs.append(_nested_input(specs[name], data, model.max_batch_size > 0))
    document = schemas.Tensors(inputs=inputs, parameters=parameters)
    return TensorBody(document, length)


def _nested_input(spec: TensorSpec, data: Any, is_batched: bool) -> schemas.Input:
    """Convert nested lists to a tensor of the same shape. If `is_batched` and the lists lack the
    level for the batch dimension, they become a batch of one row. The values are checked later, by
    `read_inputs`. Raise InvalidRequest if the lists are empty, nested too deep, or differ in
    length."""
    shape: list[int] = []
    values = [data]
    while list in (types := types_of(values)):
        are_all_lists = types == {list}
        are_equally_long = are_all_lists and len(set(map(len, values))) == 1
        if not are_equally_long or len(shape) == MOST_DIMENSIONS:
            raise InvalidRequest(
                f"input '{spec.name}': lists next to each other must have the same length, and may "
                f"be nested at most {MOST_DIMENSIONS} deep"
            )
        shape.append(len(values[0]))
        values = flattened(values)
    if not values:
        raise InvalidRequest(f"input '{spec.name}': the list is empty; send a row or more")
    if is_batched and len(shape) == len(spec.shape):
        shape = [1, *shape]
    return schemas.Input(name=spec.name, shape=shape, datatype=spec.datatype, data=values)


def rows_of(frame: schemas.Frame, field: str) -> list[Item]:
    """Return the rows of a data frame as instances. A row becomes an object whose keys are the
    columns, or a list if the columns are the numbers 0, 1, 2 and so on. `field` is the body's field
    that contains the frame. Raise a ServingError if the frame is invalid or takes too much
    memory."""
    columns = list(map(str, frame.columns))
    for number, row in enumerate(in_time(frame.data)):
        if len(row) != len(columns):
            raise DecodingError(
                f"it has {len(row)} cells, and 'columns' {len(columns)}", instance=number
            )
    if frame.columns == list(range(len(columns))):
        return items_of(frame.data, field)
    if len(set(columns)) < len(columns):
        raise InvalidRequest(f"the body, '{field}.columns' names a column twice")
    reserve((OBJECT + KEY * len(columns)) * len(frame.data), "the rows of the data frame")
    return items_of([dict(zip(columns, row, strict=True)) for row in frame.data], field)
