"""Makes predictions for instances with a model's client: decodes and preprocesses the instances,
calls the model, and postprocesses its outputs.

This is done in batches. A batch has at most max_batch_size instances (one, if the model has no
batch dimension), and no more than fit into memory together. The predictions are in the order of the
instances.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from time import sleep
from typing import Any

import numpy as np
import orjson

from clients.base import ModelClient, Tensors, TooManyRows
from serving.bodies.decoder import LARGE, LONG, Item, Opened
from serving.bodies.writing import joined, predictions_as_array, predictions_as_csv, write_npy
from serving.budget import MOST_INSTANCES, check_count, in_time, read_json
from serving.codecs import encode_image
from serving.errors import (
    DecodingError,
    InferenceFailed,
    InvalidRequest,
    NotAcceptable,
    Overloaded,
    ServingError,
    UnsupportedMediaType,
)
from serving.headers import (
    CSV,
    JSON_TYPE,
    NPY_TYPE,
    PICTURES,
    TRUNCATED,
    preferred,
    wants_other_picture,
)
from serving.job import Job, Reply, Step
from serving.model_status.served_model import ServedModel
from serving.named_value import quoted
from serving.request import UNNAMED, Request, Target
from serving.request_memory import INPUT, ITEM, KEPT, OUTPUT, TOKEN, Reservation, collected, reserve
from serving.sessions import SEQUENCE_END, Session
from serving.triton.tensors import InferReply, Tensor

# Media types that HTTP clients send if the caller sets none. The last one is sent by the
# DataSerializer of the SageMaker SDK.
UNDECLARED = (
    "",
    "application/octet-stream",
    "application/x-www-form-urlencoded",
    "file-path/raw-bytes",
)
MOST_OUTPUT = 64 * 2**20  # maximum size in bytes of the outputs of a batch with several rows
PAUSE = 0.02  # seconds between two attempts to reserve memory


@dataclass(frozen=True)
class Instances:
    """Instances as the caller sent them. If `as_result` is true, the reply has the format
    {"modelname", "result"}. If the instances are raw bytes, `media_type` is the media type that the
    client must accept. If the instances are in JSON or a form, `named` is the model that the JSON
    or the form names."""

    items: list[Item]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    as_result: bool = False
    media_type: str = ""
    named: Target = UNNAMED

    def bind(self, served: ServedModel, request: Request) -> Job:
        client = served.require_client()
        check_media_type(client, self.media_type)
        self._check_not_json(client)
        return InstancesJob(served, request, self)

    def _check_not_json(self, client: ModelClient) -> None:
        """Raise InvalidRequest if a raw body whose media type is in UNDECLARED is a JSON list or
        string, because it is probably meant as JSON. Do nothing if the client accepts raw JSON."""
        raw = self.items[0].raw
        if raw is None or self.media_type not in UNDECLARED:
            return
        if JSON_TYPE in client.codec.media_types:
            return
        first_byte = raw[:64].lstrip()[:1]
        if first_byte not in (b"[", b'"'):
            return
        try:
            read_json(raw)
        except ValueError:
            return
        raise InvalidRequest(
            f"the body is JSON without 'instances': send {{\"instances\": […]}}, each "
            f"{client.codec.expected}; if it is not meant as JSON, send Content-Type: "
            f"{client.codec.media_types[0]}"
        )


@dataclass
class Batch:
    """Instances that are answered together.

    `first` is the index of the first instance, and `end` is the index after the last. `calls` are
    the inputs of the calls to Triton that have not been made yet. `memory` is how many bytes of
    memory decoding the instances took. Drawing on a batch's only image takes as many.
    `reserved` is the memory that the batch holds until it is cleared.
    """

    first: int
    end: int
    instances: Sequence[Any]
    tensors: Tensors
    calls: list[list[Tensor]]
    memory: int
    reserved: Reservation

    def clear(self) -> None:
        """Free the instances and tensors, and give back all memory that the batch holds, because
        the next batch may need it."""
        self.instances = ()
        self.tensors = {}
        self.reserved.shrink()


@dataclass(frozen=True)
class Predictions:
    """The predictions for a batch, one for each instance, and the version of the model that
    answered."""

    batch: Batch
    version: str
    predictions: list[Any]


def items_of(value: Any, field: str, part: str = "") -> list[Item]:
    """Return an Item for each instance in `value`, the JSON value of the body's `field`. A value
    that is not a list is one instance. If `part` is given, a string becomes an object with this
    key, as the codec expects. Raise InvalidRequest for an empty list, and PayloadTooLarge for too
    many instances."""
    values = value if isinstance(value, list) else [value]
    if not values:
        raise InvalidRequest(f"the body, '{field}' is an empty list; send one instance or more")
    check_count(len(values), MOST_INSTANCES, "instances", "send fewer at a time, or JSON lines")
    reserve(ITEM * len(values), "the instances")
    if part:
        values = [{part: entry} if isinstance(entry, str) else entry for entry in values]
    return [Item(field, value=entry) for entry in values]


class InstancesJob(Job):
    """Makes predictions with a model's client."""

    def __init__(self, served: ServedModel, request: Request, body: Instances) -> None:
        """Raise InvalidRequest or SessionNotFound if a parameter or the session's id is wrong, and
        NotAcceptable if an image is requested for several instances or in a format not in PICTURES.
        """
        super().__init__(served, request, body.parameters)
        self.client = served.require_client()
        self.items = body.items
        self.as_result = body.as_result
        self.truncated = 0  # how many texts were cut because they are too long for the model
        # A model with sequences needs a sequence for each request. Without a session, the sequence
        # lasts only for this request.
        self.sequence = self.session
        if served.sequencing and not self.sequence:
            self.sequence = Session(served.sequencing, served.sequencing.new_id())
        # in a sequence, a step must wait for the answer to the previous step
        self.is_pipelined = not (self.sequence or self.is_decoupled)
        self.parameters = client_parameters(self.client, request, body.parameters)
        self.accept = preferred(request.accept, *PICTURES, CSV, NPY_TYPE)
        # the media type of the image to return, with the results drawn on it, or ""
        self.picture = self.accept if self.accept in PICTURES else ""
        if wants_other_picture(request.accept):
            raise NotAcceptable(
                f"Accept: {quoted(request.accept)} cannot be met; drawn images are "
                f"{' or '.join(PICTURES)}, other replies are {JSON_TYPE}"
            )
        if self.picture and len(self.items) != 1:
            raise NotAcceptable(
                f"Accept: {self.accept} takes one image at a time, got {len(self.items)} instances"
            )

    def prepare(self, before: Step | None = None) -> Step:
        """Return a step with the next rows of the batch to which `before` belongs or, if that batch
        has no more rows, with the first rows of the next batch."""
        batch: Batch | None = before.batch if before else None
        if batch is None:
            batch = self._next_batch(0)
        elif not batch.calls:
            batch = self._next_batch(batch.end, holds_memory=batch.reserved.size > 0)
        inputs = batch.calls.pop(0)
        is_partial = bool(batch.calls)
        is_last = not is_partial and batch.end == len(self.items)
        flags = self.sequence.parameters(before is None, is_last) if self.sequence else {}
        return Step(
            inputs, flags, self.client.outputs, batch, is_partial=is_partial, is_last=is_last
        )

    def _next_batch(self, first: int, holds_memory: bool = False) -> Batch:
        """Decode and preprocess the next instances, the first of which has the index `first`, and
        return them as a batch. In a sequence, a batch has one instance. Otherwise, it has as many
        as fit into one call and into memory. If the request already `holds_memory` of another
        batch, do not wait for more memory, because requests could then wait for each other forever.

        Raise a ServingError. In that case, this method has given back all memory that it reserved.
        """
        most = 1 if self.sequence else self.client.model.max_batch_size or 1
        most = min(most, self._most_rows())
        with collected() as held:
            with self.request.timings.stage("decode"):
                items = self.items[first : first + most]
                # if the result is to be drawn on an image, decode the image at full size
                opened = self.request.decoder.open(
                    self.client, first, items, full_size=bool(self.picture)
                )
            memory = opened.memory
            are_images = memory > 0
            tensor_bytes = len(opened.values) * self._row_bytes() if are_images else 0
            reserved = self._reserve_batch(memory + tensor_bytes, holds_memory)
            instances, tensors = self._preprocessed(opened, most)
            kept, size = self._sizes(memory, tensors)
            # Memory for images was reserved before decoding. For other instances, the size is known
            # only now. If the client keeps objects, do not wait for memory, because the objects
            # would hold memory while this request waits.
            if are_images:
                reserved.shrink(size)
                reserved.grow(size, "a batch of its instances")
            else:
                self._reserve_batch(size, holds_memory or kept > 0)
        end = first + len(instances)
        calls = list(_inputs_of_calls(self.client, tensors))
        return Batch(first, end, instances, tensors, calls, memory, held)

    def _preprocessed(self, opened: Opened, most: int) -> tuple[list[Any], Tensors]:
        """Wait for a turn, and decode and preprocess the opened instances. Return those that fit
        into one call of at most `most` rows, but at least one, and their tensors. The other
        instances are decoded again for the next batch."""
        client = self.client
        request = self.request
        length = client.length(opened.values, self.parameters)
        is_large = opened.memory > LARGE or length > LONG
        with request.decoder.turn(client.codec.name, is_large, request.deadline):
            with request.timings.stage("decode"):
                instances = request.decoder.decode(client, opened)
            if len(instances) > 1:  # each may have several rows
                rows_so_far = accumulate(map(client.rows, instances))
                fitting = sum(rows <= most for rows in rows_so_far)
                instances = instances[: max(1, fitting)]
            return self._fitting(instances, opened.index)

    def _sizes(self, memory: int, tensors: Tensors) -> tuple[int, int]:
        """Return the size in bytes of the objects that the client keeps for a batch, and the size
        of the whole batch. Decoding the batch's instances took `memory` bytes."""
        shape, count = _row_shape_and_count(self.client, tensors)
        # capped, because the sizes of dynamic dimensions are only estimates
        row = min(self._row_bytes(shape), OUTPUT * MOST_OUTPUT)
        kept = TOKEN * prod(shape) * _kept_objects(self.client, tensors)
        return kept, memory // KEPT + count * row + kept

    def _fitting(self, instances: list[Any], first: int) -> tuple[list[Any], Tensors]:
        """Return as many of the instances as the limits on rows allow, but at least one, and their
        tensors. `first` is the index of the first instance in the request."""
        try:
            tensors = self._preprocess(instances, first)
        except TooManyRows as err:
            instances = instances[: err.fitting]
            tensors = self._preprocess(instances, first)
        shape, count = _row_shape_and_count(self.client, tensors)
        most = self._most_rows(shape)
        if count > most and len(instances) > 1:
            instances = instances[: max(1, most * len(instances) // count)]
            tensors = self._preprocess(instances, first)
        return instances, tensors

    def _row_bytes(self, shape: Sequence[int] = ()) -> int:
        """Return how many bytes of memory one row takes, copies of its tensors included. `shape` is
        the shape that `_row_shape_and_count` returns. Its last dimensions are used as the dynamic
        dimensions of every input and output. If `shape` is empty, dynamic dimensions count as 1."""
        outputs = self.served.output_bytes(self.client.outputs, shape)
        return INPUT * self.served.input_bytes(shape) + OUTPUT * outputs

    def _most_rows(self, shape: Sequence[int] = ()) -> int:
        """Return how many rows a batch may have if its outputs are to have at most MOST_OUTPUT
        bytes, but at least 1. `shape` has the same meaning as in `_row_bytes`."""
        row = self.served.output_bytes(self.client.outputs, shape)
        return max(1, MOST_OUTPUT // max(1, row))

    def _reserve_batch(self, size: int, holds_memory: bool) -> Reservation:
        """Reserve the memory for a batch. If other requests hold the memory, wait for it, or raise
        Overloaded if this request `holds_memory` already. Raise PayloadTooLarge if a request may
        never hold that much, and TooLate if the deadline passes first."""
        while True:
            try:
                return reserve(size, "a batch of its instances")
            except Overloaded:
                if holds_memory:
                    raise
                sleep(self.request.deadline.left(PAUSE))

    def _preprocess(self, instances: Sequence[Any], first: int) -> Tensors:
        try:
            with self._client_step("preprocess"):
                return self.client.prepare(instances, self.parameters)
        # the client numbers instances from the start of the batch, the caller from the start of the
        # request
        except DecodingError as err:
            raise err.at(first + (err.instance or 0)) from err

    @contextmanager
    def _client_step(self, step: str) -> Iterator[None]:
        """Measure the time that the client takes for a step. If the client raises anything but a
        ServingError or TooManyRows, which are expected, raise InferenceFailed instead."""
        with self.request.timings.stage(step):
            try:
                yield
            except (ServingError, TooManyRows):
                raise
            except Exception as err:
                raise InferenceFailed(
                    f"the client of model '{self.served.name}' failed in {step} "
                    f"({type(err).__name__}); the log has the details under this request_id"
                ) from err

    def finish(self, step: Step, replies: Sequence[InferReply]) -> Predictions:
        """Return the predictions for the step's batch. `replies` are the replies for all of its
        rows."""
        batch: Batch = step.batch
        outputs = self._outputs(replies)
        with self._client_step("postprocess"):
            predictions = list(
                self.client.postprocess(outputs, batch.tensors, batch.instances, self.parameters)
            )
        if len(predictions) != len(batch.instances):
            raise InferenceFailed(
                f"the client of model '{self.served.name}' made {len(predictions)} predictions of "
                f"{len(batch.instances)} instances"
            )
        # a client for texts says for each text whether it was truncated
        self.truncated += total(batch.tensors, "truncated")
        return Predictions(batch, replies[-1].version, predictions)

    def release(self, step: Step) -> None:
        """Free the step's batch, unless it contains an image that is still to be drawn on."""
        if not self.picture:
            step.batch.clear()

    def _outputs(self, replies: Sequence[InferReply]) -> Tensors:
        """Return the outputs of all calls for a batch, with their rows concatenated."""
        calls = [reply.arrays() for reply in replies]
        if not self.client.model.max_batch_size:
            calls = [_with_row_dimension(outputs) for outputs in calls]
        if len(calls) == 1:
            return calls[0]
        all_rows: Tensors = {}
        for name in calls[0]:
            all_rows[name] = np.concatenate([outputs[name] for outputs in calls])
        return all_rows

    def reply(self, results: Iterator[Predictions]) -> Reply:
        """Return the reply. If texts were truncated, a header contains their number."""
        reply = self._reply(results)
        if not self.truncated:
            return reply
        return replace(reply, headers={TRUNCATED: str(self.truncated)})

    def _reply(self, results: Iterator[Predictions]) -> Reply:
        """Return the reply: an image, npy, CSV or JSON. Write CSV and JSON batch by batch, because
        the Python objects of all predictions would take several times as much memory as the
        text."""
        if self.picture:
            return self._drawing(results)
        if self.accept == NPY_TYPE:
            return self._npy(results)
        written = io.BytesIO()
        version = ""
        with reserve(0, "the answer") as answer:
            for result in results:
                version = result.version
                if self.accept == CSV:
                    piece = predictions_as_csv(result.predictions)
                else:
                    piece = self.batch_items(result)
                    if written.tell():
                        written.write(b",")
                self.request.budget.grow(answer, written.tell() + len(piece))
                written.write(piece)
            if self.accept == CSV:
                return Reply(written.getvalue(), CSV, version)
            return Reply(self.document(written.getvalue(), version), version=version)

    def _drawing(self, results: Iterator[Predictions]) -> Reply:
        (result,) = results
        batch = result.batch
        with reserve(batch.memory, "the drawing"):
            drawn = self.client.draw(batch.instances[0], result.predictions[0])
            return Reply(encode_image(drawn, self.picture), self.picture, result.version)

    def _npy(self, results: Iterator[Predictions]) -> Reply:
        budget = self.request.budget
        arrays = []
        size = 0
        version = ""
        with reserve(0, "the answer") as answer:
            for result in results:
                version = result.version
                arrays.append(predictions_as_array(result.predictions))
                size += arrays[-1].nbytes
                budget.grow(answer, size)
            return Reply(write_npy(joined(arrays), budget), NPY_TYPE, version)

    def batch_items(self, result: Predictions) -> bytes:
        """Return the JSON of a batch's predictions, without the brackets of the list in the
        reply."""
        return json_items(result.predictions)

    def document(self, items: bytes, version: str) -> bytes:
        """Return the JSON of the reply. `items` is the JSON of the predictions, without the
        brackets of their list."""
        return predictions_document(self.served, items, version, self.as_result)

    def line(self, result: Predictions) -> bytes:
        about = {
            "model_name": self.served.public_name,
            "model_version": result.version,
            "offset": result.batch.first,
        }
        return object_with_list(about, "predictions", json_items(result.predictions))


def _with_row_dimension(outputs: Tensors) -> Tensors:
    return {name: np.expand_dims(array, 0) for name, array in outputs.items()}


def total(tensors: Tensors, name: str) -> int:
    """Return the sum of the elements of the tensor called `name`, or 0 if there is no such
    tensor."""
    return int(tensors[name].sum()) if name in tensors else 0


def client_parameters(
    client: ModelClient, request: Request, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of all of the client's parameters. A value in `parameters`, which come from
    the body, overrides one in the query string, and that overrides one in Custom-Attributes.
    Attributes that are not parameters are ignored. Raise InvalidRequest if a value is wrong, or if
    the body or the query string has an unknown parameter."""
    names = {parameter.name for parameter in client.parameters}
    values = {name: value for name, value in request.attributes.items() if name in names}
    values |= {**request.parameters, **parameters}
    values.pop(SEQUENCE_END, None)
    return client.read_parameters(values)


def predictions_document(served: ServedModel, items: bytes, version: str, as_result: bool) -> bytes:
    """Return the JSON of the reply. `items` is the JSON that `json_items` returned. If `as_result`
    is true, `items` has only one prediction, and the reply is {"modelname", "result"}. `items` is
    not passed through orjson, which would copy it twice."""
    if as_result:
        about = orjson.dumps({"modelname": served.public_name})
        return b"".join((about[:-1], b',"result":', items, b"}"))
    fields = {"model_name": served.public_name, "model_version": version}
    return object_with_list(fields, "predictions", items)


def object_with_list(about: Mapping[str, Any], key: str, items: bytes) -> bytes:
    """Return the JSON of the object `about`, which must not be empty, with an additional `key`. Its
    value is the list whose JSON without brackets is `items`."""
    without_brace = orjson.dumps(about)[:-1]
    return b"".join((without_brace, b',"%b":[' % key.encode(), items, b"]}"))


def json_items(predictions: Sequence[Any]) -> bytes:
    """Return the JSON of a list of predictions, without its brackets. Each call of orjson writes
    only one prediction, because orjson holds the GIL while it writes."""
    return b",".join(map(_as_json, in_time(predictions, every=1)))


def _as_json(prediction: Any) -> bytes:
    return orjson.dumps(prediction, option=orjson.OPT_SERIALIZE_NUMPY)


def _inputs_of_calls(client: ModelClient, tensors: Tensors) -> Iterator[list[Tensor]]:
    """Yield the inputs of each call to the model. A call has at most max_batch_size rows, or one
    row if the model has no batch dimension."""
    names = [spec.name for spec in client.model.inputs if spec.name in tensors]
    rows = max([len(tensors[name]) for name in names], default=0)
    most = client.model.max_batch_size
    for first in range(0, max(rows, 1), most or 1):  # without inputs, there is one call
        # an integer index removes the dimension of the rows
        index = slice(first, first + most) if most else first
        yield [Tensor.of(name, tensors[name][index]) for name in names]


def _row_shape_and_count(client: ModelClient, tensors: Tensors) -> tuple[tuple[int, ...], int]:
    """Return the shape of one row of the smallest input, and the number of rows. The smallest input
    is used because the positions of masked tokens are an input that is shorter than the text, and
    then the outputs contain only those positions."""
    shapes = [tensors[spec.name].shape for spec in client.model.inputs if spec.name in tensors]
    shortest = min((shape[1:] for shape in shapes), key=prod, default=())
    return shortest, max((shape[0] for shape in shapes), default=1)


def _kept_objects(client: ModelClient, tensors: Tensors) -> int:
    """Return how many Python objects the client keeps besides the inputs. It keeps one for each
    window of a text."""
    inputs = {spec.name for spec in client.model.inputs}
    kept = (array for name, array in tensors.items() if name not in inputs)
    return sum(array.size for array in kept if array.dtype == np.object_)


def check_media_type(client: ModelClient, kind: str) -> None:
    """Raise UnsupportedMediaType if `kind`, the media type of a raw body, is not one that the
    model's client accepts. Every client accepts those in UNDECLARED."""
    allowed = client.codec.media_types
    family = kind.partition("/")[0] + "/*"
    if kind in UNDECLARED or kind in allowed or family in allowed:
        return
    names = ", ".join(dict.fromkeys((*allowed, JSON_TYPE)))
    raise UnsupportedMediaType(f"model '{client.model.name}' takes {names}, not '{kind}'")
