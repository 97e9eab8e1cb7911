"""Instances for a model's client: decode, preprocess, infer, postprocess, in batches.

n instances give n predictions in the same order; a batch has at most max_batch_size of them, and as
many as fit into memory together.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import orjson

from clients.base import ModelClient, Tensors
from serving.budget import Deadline, read_json
from serving.codecs import Codec, Limits, encode_image
from serving.codecs.image import most_memory
from serving.errors import (
    DecodingError,
    InferenceFailed,
    InvalidRequest,
    NotAcceptable,
    ServingError,
    UnsupportedMediaType,
)
from serving.headers import JSON_TYPE, PICTURES, SEQUENCE_END, Session, preferred
from serving.model_status.served_model import ServedModel
from serving.request import UNNAMED, Batch, Job, Reply, Request, Target
from serving.triton.tensors import InferReply, Tensor

# clients' own defaults
UNDECLARED = ("", "application/octet-stream", "application/x-www-form-urlencoded")
LONGEST_WAIT = 60.0  # seconds; then it looks at the deadline again


@dataclass(frozen=True)
class Item:
    """One instance as it came: raw bytes or a JSON value, and the field that held it."""

    field: str
    raw: bytes | None = None
    value: Any = None

    def open(self, client: ModelClient, limits: Limits) -> Any:
        """Return what `load` makes the instance of. Raise DecodingError."""
        if self.raw is not None:
            return client.codec.open(self.raw, limits)
        client.check_keys(self.value)
        return client.codec.open_json(self.value, limits)

    def load(self, codec: Codec, opened: Any, index: int) -> Any:
        """Return the instance. Raise DecodingError with its place in the request."""
        try:
            return codec.load(opened)
        except DecodingError as err:
            raise self.placed(err, index, codec.part if self.raw is None else "") from err

    def placed(self, error: DecodingError, index: int, part: str = "") -> DecodingError:
        """Return the error with its place in the request."""
        return error.at(index, ".".join(filter(None, (self.field, error.field or part))))


class Decoder:
    """At most `turns` requests decode and preprocess at a time, for each kind of instance, their
    images in `threads`.

    The bound keeps memory and the interpreter's lock free of a crowd: the other requests wait for
    their turn. A text does not wait behind images.
    """

    def __init__(self, limits: Limits, turns: int = 1, threads: int = 1) -> None:
        self.limits = limits
        self._turns: dict[str, threading.BoundedSemaphore] = defaultdict(
            lambda: threading.BoundedSemaphore(turns)
        )
        # starts them at first use, that is after gunicorn's fork
        self._threads = ThreadPoolExecutor(threads, "decode")

    def wait_for_turn(self, kind: str, deadline: Deadline) -> threading.BoundedSemaphore:
        """Return the turn, which the caller releases. Raise TooLate if the deadline passes
        before."""
        turn = self._turns[kind]
        while not turn.acquire(timeout=deadline.left(LONGEST_WAIT)):
            pass
        return turn

    def decode(self, client: ModelClient, first: int, items: Sequence[Item]) -> list[Any]:
        """Return the instances of as many items as `_open` takes. Of several mistakes, raise that
        of the first item."""
        codec = client.codec
        opened, mistake = self._open(client, first, items)
        loads = [
            partial(item.load, codec, value, first + at)
            for at, (item, value) in enumerate(zip(items, opened, strict=False))
        ]
        if len(loads) > 1 and sum(codec.memory(value) > 0 for value in opened) > 1:
            futures = [self._threads.submit(copy_context().run, load) for load in loads]
            wait(futures)  # even after an error, because the others take memory until they end
            instances = [future.result() for future in futures]
        else:
            instances = [load() for load in loads]
        if mistake:
            raise mistake
        return instances

    def _open(
        self, client: ModelClient, first: int, items: Sequence[Item]
    ) -> tuple[list[Any], DecodingError | None]:
        """Return as many of the items, at least one, as take together no more memory than the
        largest image may: a small body can hold many large images. Return too the mistake in the
        next item, if there is one."""
        opened: list[Any] = []
        left = most_memory(self.limits.max_image_pixels)
        limits = replace(self.limits, side=client.side) if client.side else self.limits
        for at, item in enumerate(items):
            try:
                value = item.open(client, limits)
            except DecodingError as err:
                mistake = item.placed(err, first + at)
                mistake.__cause__ = err
                return opened, mistake
            left -= client.codec.memory(value)
            if opened and left < 0:
                break
            opened.append(value)
        return opened, None


@dataclass(frozen=True)
class Instances:
    """Instances as they came. `sample_shape` asks for the reply {"modelname", "result"};
    `media_type` is that of a raw body, "" if it has none; `named` is the model that the JSON or the
    form around the instances names."""

    items: list[Item]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sample_shape: bool = False
    media_type: str = ""
    named: Target = UNNAMED

    def bind(self, served: ServedModel, request: Request) -> Job:
        client = served.client or served.require_client()
        check_media_type(client, self.media_type)
        self._check_not_json(client)
        return InstancesJob(served, request, self.items, self.parameters, self.sample_shape)

    def _check_not_json(self, client: ModelClient) -> None:
        """Refuse a body that is JSON but not one of our objects, and has no media type: it is
        probably not a text."""
        raw = self.items[0].raw
        if (
            raw is None
            or self.media_type not in UNDECLARED
            or JSON_TYPE in client.codec.media_types
        ):
            return
        if raw[:64].lstrip()[:1] not in (b"[", b'"'):
            return
        with suppress(ValueError):
            read_json(raw)
            raise InvalidRequest(
                f"the body is JSON without 'instances': send {{\"instances\": […]}}, each "
                f"{client.codec.expected}; if it is not meant as JSON, send Content-Type: "
                f"{client.codec.media_types[0]}"
            )


@dataclass(frozen=True)
class Predictions:
    """One prediction for each instance of a batch, the index of its first instance, and the version
    that answered. `instances` are kept only to draw on them: otherwise all images of a request
    would stay in memory."""

    first: int
    version: str
    predictions: list[Any]
    instances: Sequence[Any] = ()


class InstancesJob(Job):
    """Predictions of a client. `parameters` are those of the body."""

    def __init__(
        self,
        served: ServedModel,
        request: Request,
        items: Sequence[Item],
        parameters: Mapping[str, Any],
        sample_shape: bool = False,
    ) -> None:
        """Raise InvalidRequest or NotAcceptable."""
        super().__init__(served, request, parameters)
        self.client, self.items, self.sample_shape = (
            served.client or served.require_client(),
            items,
            sample_shape,
        )
        self.parameters = client_parameters(self.client, request, parameters)
        best = preferred(request.accept, *PICTURES)
        self.picture = best if best in PICTURES else ""
        if self.picture and len(items) != 1:
            raise NotAcceptable(
                f"Accept: {best} takes one image at a time, got {len(items)} instances"
            )

    def batches(self) -> Iterator[Batch]:
        """Yield the calls. In a session each has one instance and waits for the previous answer."""
        client, request = self.client, self.request
        decoder = request.decoder or Decoder(Limits())
        sequencing = self.served.sequencing
        session = self.session or (Session(sequencing, sequencing.new_id()) if sequencing else None)
        size = 1 if session else client.model.max_batch_size or 1
        first, total = 0, len(self.items)
        while first < total:
            turn = decoder.wait_for_turn(client.codec.name, request.deadline)
            try:
                with request.timings.stage("decode"):
                    instances = decoder.decode(client, first, self.items[first : first + size])
                if len(instances) > 1:
                    rows = accumulate(map(client.rows, instances))
                    instances = instances[: max(1, sum(count <= size for count in rows))]
                tensors = self._preprocess(instances, first)
            finally:
                turn.release()
            end = first + len(instances)
            yield from self._calls(tensors, instances, first, session, is_last=end == total)
            first = end

    def _calls(
        self,
        tensors: Tensors,
        instances: list[Any],
        first: int,
        session: Session | None,
        is_last: bool,
    ) -> Iterator[Batch]:
        """Yield calls of as many rows as the model takes. The answer to the last makes the
        predictions."""
        parts = list(_parts(self.client, tensors))
        replies: list[InferReply] = []
        for number, inputs in enumerate(parts, 1):
            ends = number == len(parts)
            flags = (
                session.parameters(first == 0 and number == 1, ends and is_last) if session else {}
            )
            predict = partial(self._postprocess, tensors, instances, first, replies)
            read: Callable[[InferReply], Any] = predict if ends else replies.append
            yield Batch(
                inputs, read, flags, self.client.outputs, not session and not (ends and is_last)
            )

    def _preprocess(self, instances: Sequence[Any], first: int) -> Tensors:
        with self.request.timings.stage("preprocess"):
            try:
                return self.client.prepare(instances, self.parameters)
            # the client counts within its batch, the caller within the request
            except DecodingError as err:
                raise err.at(first + (err.instance or 0)) from err
            except ServingError:
                raise
            except Exception as err:
                raise self._failed("preprocess", err) from err

    def _postprocess(
        self,
        tensors: Tensors,
        instances: list[Any],
        first: int,
        earlier: Sequence[InferReply],
        last: InferReply,
    ) -> Predictions:
        outputs = self._outputs([*earlier, last])
        with self.request.timings.stage("postprocess"):
            try:
                predictions = list(
                    self.client.postprocess(outputs, tensors, instances, self.parameters)
                )
            except ServingError:
                raise
            except Exception as err:
                raise self._failed("postprocess", err) from err
        if len(predictions) != len(instances):
            raise InferenceFailed(
                f"the client of model '{self.served.name}' made {len(predictions)} predictions of "
                f"{len(instances)} instances"
            )
        return Predictions(first, last.version, predictions, instances if self.picture else ())

    def _failed(self, step: str, error: Exception) -> InferenceFailed:
        return InferenceFailed(
            f"the client of model '{self.served.name}' failed in {step} ({type(error).__name__}); "
            "the log has the details under this request_id"
        )

    def _outputs(self, replies: Sequence[InferReply]) -> Tensors:
        """Return the outputs of all calls, joined by rows."""
        arrays = [reply.arrays() for reply in replies]
        if not self.client.model.max_batch_size:
            arrays = [
                {name: np.expand_dims(array, 0) for name, array in outputs.items()}
                for outputs in arrays
            ]
        if len(arrays) == 1:
            return arrays[0]
        return {name: np.concatenate([outputs[name] for outputs in arrays]) for name in arrays[0]}

    def reply(self, results: Iterator[Predictions]) -> Reply:
        """Return the reply, written batch by batch: as Python objects all predictions would take
        several times the memory."""
        written, version = bytearray(), ""
        for result in results:
            if self.picture:
                drawn = self.client.draw(result.instances[0], result.predictions[0])
                return Reply(encode_image(drawn, self.picture), self.picture, result.version)
            written += (b"," if written else b"") + as_items(result.predictions)
            self.request.budget.check_output(len(written))
            version = result.version
        return Reply(
            document(self.served, bytes(written), version, self.sample_shape), version=version
        )

    def line(self, result: Predictions) -> bytes:
        about = {"model_name": self.served.name, "model_version": result.version}
        return orjson.dumps({**about, "offset": result.first, "predictions": result.predictions})


def client_parameters(
    client: ModelClient, request: Request, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the client's parameters: those of the attributes that it knows, the query's and the
    body's. The last one counts. Raise InvalidRequest."""
    names = {parameter.name for parameter in client.parameters}
    values = {name: value for name, value in request.attributes.items() if name in names}
    values |= {**request.parameters, **parameters}
    values.pop(SEQUENCE_END, None)
    return client.read_parameters(values)


def document(served: ServedModel, items: bytes, version: str, sample_shape: bool) -> bytes:
    """Return the reply's JSON around what `as_items` wrote."""
    if sample_shape:
        return orjson.dumps({"modelname": served.name, "result": orjson.Fragment(items)})
    about = {"model_name": served.name, "model_version": version}
    return orjson.dumps({**about, "predictions": orjson.Fragment(b"[%b]" % items)})


def as_items(predictions: Sequence[Any]) -> bytes:
    """Return a list's JSON without its brackets."""
    return orjson.dumps(predictions)[1:-1]


def _parts(client: ModelClient, tensors: Tensors) -> Iterator[list[Tensor]]:
    """Yield the arrays that are inputs of the model, as many rows at a time as it takes."""
    is_batched, size = client.model.max_batch_size > 0, client.model.max_batch_size or 1
    inputs = [
        (spec.name, tensors[spec.name]) for spec in client.model.inputs if spec.name in tensors
    ]
    rows = max((len(array) for _, array in inputs), default=0)
    for first in range(0, max(rows, 1), size):
        parts = [(name, array[first : first + size]) for name, array in inputs]
        yield [Tensor.of(name, part if is_batched else part[0]) for name, part in parts]


def check_media_type(client: ModelClient, kind: str) -> None:
    """Raise UnsupportedMediaType for a raw body of a type that the model does not take."""
    allowed = client.codec.media_types
    if kind in UNDECLARED or kind in allowed or kind.partition("/")[0] + "/*" in allowed:
        return
    raise UnsupportedMediaType(
        f"model '{client.model.name}' takes "
        f"{', '.join(dict.fromkeys((*allowed, JSON_TYPE)))}, not '{kind}'"
    )
