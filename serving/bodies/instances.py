"""Instances for a model's client: decode, preprocess, infer, postprocess, in batches.

n instances give n predictions in the same order; a batch has at most max_batch_size of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import orjson

from clients.base import ModelClient, Tensors
from serving.budget import MOST_INSTANCES, check_count, read_json
from serving.codecs import describe, encode_image
from serving.decoding import Decoder, Item
from serving.errors import (
    DecodingError,
    InferenceFailed,
    InvalidRequest,
    NotAcceptable,
    ServingError,
    UnsupportedMediaType,
)
from serving.headers import JSON_TYPE, preferred
from serving.request import NOBODY, Batch, Body, Reply, Request, ServedModel, Target, Timings
from serving.sessions import SEQUENCE_END, Session
from serving.triton.tensors import InferReply, Tensor

UNDECLARED = ("", "application/octet-stream", "application/x-www-form-urlencoded")  # clients' own defaults
PICTURES = ("image/jpeg", "image/png")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Predictions:
    """One prediction for each instance of a batch, the index of its first instance, and the version that answered.
    `instances` are kept only to draw on them: otherwise all images of a request would stay in memory."""

    first: int
    version: str
    predictions: list[Any]
    instances: Sequence[Any] = ()


@dataclass(frozen=True)
class Instances(Body):
    """Instances as they came. `sample_shape` asks for the reply {"modelname", "result"}; `media_type` is that of a raw
    body, "" if it has none; `named` is the model that the JSON or the form around the instances names."""

    items: list[Item]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sample_shape: bool = False
    media_type: str = ""
    named: Target = NOBODY

    def target(self) -> Target:
        return self.named

    def flags(self) -> Sequence[Mapping[str, Any]]:
        return [self.parameters]

    def given(self, served: ServedModel, request: Request) -> dict[str, Any]:
        """Return the client's parameters: those of the attributes that it knows, the query's and the body's. The last
        one counts."""
        given = served.known_parameters(request.attributes) | dict(request.parameters) | dict(self.parameters)
        given.pop(SEQUENCE_END, None)
        return given

    def batches(
        self, served: ServedModel, request: Request, session: Session | None, decoder: Decoder
    ) -> Iterator[Batch]:
        """Yield the calls. In a session each has one instance and waits for the previous answer."""
        client = served.require_client()
        check_media_type(client, self.media_type)
        self._check_not_json(client)
        self._check_picture(request)
        parameters = client.read_parameters(self.given(served, request))
        if served.sequencing and session is None:
            session = Session.of_one_request(served.sequencing)
        size = 1 if session else served.model.max_batch_size or 1
        keeps = wanted_picture(request) is not None
        first = 0
        while first < len(self.items):
            run = _Run(client, request.timings, parameters, first, keeps)
            with decoder.turn(client.codec.name, request.deadline):
                with request.timings.stage("decode"):
                    decoded = decoder.decode(client, first, self.items[first : first + size])
                instances = run.fitting(decoded, size)
                tensors = run.preprocess(instances)
            behind = first + len(instances)
            yield from run.calls(tensors, instances, session, starts=first == 0, goes_on=behind < len(self.items))
            first = behind

    def _check_not_json(self, client: ModelClient) -> None:
        """Refuse a body that is JSON but not one of our objects, and has no media type: it is probably not a text."""
        raw = self.items[0].raw
        if raw is None or self.media_type not in UNDECLARED or JSON_TYPE in client.codec.media_types:
            return
        if raw[:64].lstrip()[:1] in (b"[", b'"') and _is_json(raw):
            raise InvalidRequest(
                f"the body is JSON without 'instances': send {{\"instances\": […]}}, each {client.codec.expected}; "
                f"what only looks like JSON says what it is: Content-Type: {client.codec.media_types[0]}"
            )

    def _check_picture(self, request: Request) -> None:
        picture = wanted_picture(request)
        if picture and len(self.items) != 1:
            raise NotAcceptable(f"Accept: {picture} takes one image at a time, got {len(self.items)} instances")

    def reply(self, served: ServedModel, request: Request, results: Iterator[Predictions]) -> Reply:
        """Return the reply, written batch by batch: as Python objects all predictions would take several times the
        memory."""
        written, version = bytearray(), ""
        for result in results:
            if picture := wanted_picture(request):
                drawn = served.require_client().draw(result.instances[0], result.predictions[0])
                return Reply(encode_image(drawn, picture), picture, result.version)
            written += (b"," if written else b"") + as_items(result.predictions)
            request.budget.check_output(len(written))
            version = result.version
        return Reply(self.document(served, bytes(written), version), version=version)

    def document(self, served: ServedModel, items: bytes, version: str) -> bytes:
        """Return the reply's JSON around what `as_items` wrote."""
        if self.sample_shape:
            return orjson.dumps({"modelname": served.name, "result": orjson.Fragment(items)})
        about = {"model_name": served.name, "model_version": version}
        return orjson.dumps({**about, "predictions": orjson.Fragment(b"[%b]" % items)})

    def line(self, served: ServedModel, request: Request, result: Predictions) -> bytes:
        about = {"model_name": served.name, "model_version": result.version}
        return orjson.dumps({**about, "offset": result.first, "predictions": result.predictions})


def _is_json(data: bytes) -> bool:
    with suppress(orjson.JSONDecodeError):
        read_json(data)
        return True
    return False


def as_items(predictions: Sequence[Any]) -> bytes:
    """Return a list's JSON without its brackets."""
    return orjson.dumps(predictions)[1:-1]


@dataclass(frozen=True)
class _Run:
    """A client's two functions on one batch. `first` is the index of its first instance; `keeps` says that the
    prediction is drawn on the instance."""

    client: ModelClient
    timings: Timings
    parameters: Mapping[str, Any]
    first: int
    keeps: bool

    def fitting(self, instances: Sequence[Any], size: int) -> list[Any]:
        """Return the first instances, at least one, that together make about `size` rows."""
        rows = accumulate(self.client.rows(instance) for instance in instances)
        return list(instances[: max(1, sum(total <= size for total in rows))])

    def calls(
        self, tensors: Tensors, instances: list[Any], session: Session | None, starts: bool, goes_on: bool
    ) -> Iterator[Batch]:
        """Yield calls of as many rows as the model takes. The answer to the last makes the predictions."""
        size = self.client.model.max_batch_size or 1
        parts = list(_parts(self.client, tensors, size))
        replies: list[InferReply] = []
        for number, inputs in enumerate(parts, 1):
            last = number == len(parts)
            flags = session.parameters(first=starts and number == 1, last=last and not goes_on) if session else {}
            read = partial(self._read, replies, tensors, instances, last)
            yield Batch(
                inputs,
                read,
                parameters=flags,
                outputs=self.client.outputs,
                goes_on=(goes_on or not last) and not session,
            )

    def _read(
        self, replies: list[InferReply], tensors: Tensors, instances: list[Any], last: bool, reply: InferReply
    ) -> Predictions | None:
        """Return the predictions after the answer to the last call, None after the others."""
        if last:
            return self.postprocess(tensors, instances, [*replies, reply])
        replies.append(reply)
        return None

    def preprocess(self, instances: Sequence[Any]) -> Tensors:
        with self.timings.stage("preprocess"):
            try:
                return self._call("preprocess", lambda: self.client.prepare(instances, self.parameters))
            except DecodingError as err:  # the client counts within its batch, the caller within the request
                raise err.at(self.first + (err.instance or 0)) from err

    def postprocess(self, tensors: Tensors, instances: list[Any], replies: Sequence[InferReply]) -> Predictions:
        outputs = self._outputs(replies)
        with self.timings.stage("postprocess"):
            predictions = self._call(
                "postprocess", lambda: self.client.postprocess(outputs, tensors, instances, self.parameters)
            )
        if len(predictions) != len(instances):
            raise InferenceFailed(
                f"the client of model '{self.client.model.name}' made {len(predictions)} predictions of "
                f"{len(instances)} instances"
            )
        return Predictions(self.first, replies[-1].version, list(predictions), instances if self.keeps else ())

    def _outputs(self, replies: Sequence[InferReply]) -> Tensors:
        """Return the outputs of all calls, joined by rows."""
        arrays = [reply.arrays() for reply in replies]
        if not self.client.model.max_batch_size:
            arrays = [{name: np.expand_dims(array, 0) for name, array in each.items()} for each in arrays]
        if len(arrays) == 1:
            return arrays[0]
        return {name: np.concatenate([each[name] for each in arrays]) for name in arrays[0]}

    def _call(self, step: str, function: Callable[[], Result]) -> Result:
        try:
            return function()
        except ServingError:
            raise
        except Exception as err:
            raise InferenceFailed(
                f"the client of model '{self.client.model.name}' failed in {step} ({type(err).__name__}); "
                "the log has the details under this request_id"
            ) from err


def _parts(client: ModelClient, tensors: Tensors, size: int) -> Iterator[list[Tensor]]:
    """Yield the arrays that are inputs of the model, `size` rows at a time."""
    names = {spec.name for spec in client.model.inputs}
    batched = client.model.max_batch_size > 0
    inputs = {name: array for name, array in tensors.items() if name in names}
    rows = max(map(len, inputs.values()), default=0)
    for first in range(0, max(rows, 1), size):
        part = {name: array[first : first + size] for name, array in inputs.items()}
        yield [Tensor.of(name, array if batched else array[0]) for name, array in part.items()]


def wanted_picture(request: Request) -> str | None:
    """Return image/jpeg or image/png if Accept asks for a picture rather than JSON."""
    best = preferred(request.accept, *PICTURES)
    return best if best in PICTURES else None


def check_media_type(client: ModelClient, kind: str) -> None:
    """Raise UnsupportedMediaType for a raw body of a type that the model does not take."""
    allowed = client.codec.media_types
    if kind in UNDECLARED or kind in allowed or kind.partition("/")[0] + "/*" in allowed:
        return
    raise UnsupportedMediaType(
        f"model '{client.model.name}' takes {', '.join(allowed)} or application/json, not '{kind}'"
    )


def listed_items(values: Any, field: str) -> list[Item]:
    """Return an item for each instance of a list. Raise InvalidRequest or PayloadTooLarge."""
    if not isinstance(values, list) or not values:
        raise InvalidRequest(f"'{field}' must be a list of at least one instance, got {describe(values)}")
    check_count(len(values), MOST_INSTANCES, "instances", "send fewer at a time, or JSON lines")
    return [Item(field, value=value) for value in values]


def joined(bodies: Sequence[Instances]) -> Instances:
    """Return all bodies as one."""
    return replace(bodies[0], items=[item for body in bodies for item in body.items])
