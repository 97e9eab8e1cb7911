"""Instances through a client and Triton: decode, preprocess, infer, postprocess, in batches.

n instances give n predictions in the same order; a batch has at most max_batch_size of them.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from clients.base import ModelClient, Tensors
from serving.bodies.invocation import Item
from serving.codecs import Codec, Limits
from serving.errors import DecodingError, InferenceFailed, ServingError
from serving.inference.decoding import Decoder
from serving.inference.served_model import ServedModel
from serving.inference.sessions import Session
from serving.inference.timings import stage
from serving.triton.calls import Call, Responses
from serving.triton.gateway import TritonGateway
from serving.triton.tensors import Parameters, Reply, raw_tensors

AHEAD = 2  # batches in Triton at once for one request: the next is prepared while one is worked on
Result = TypeVar("Result")


@dataclass(frozen=True)
class Predictions:
    """One prediction per instance, the version that answered, and the first instance, decoded."""

    version: str
    predictions: list[Any]
    instance: Any = None


@dataclass(frozen=True)
class _Batch:
    """Decoded instances, what preprocess made of them, and what of that goes to Triton."""

    instances: list[Any]
    tensors: Tensors
    inputs: Tensors


@dataclass(frozen=True)
class Part:
    """The predictions of one response; `offset` is the number of the first instance that they are for."""

    version: str
    offset: int
    predictions: list[Any]


@dataclass(frozen=True)
class _Work:
    """What a request asks for: a model, its parameters, and those of the model that follows it in a chain."""

    served: ServedModel
    client: ModelClient
    parameters: Mapping[str, Any]
    later: Mapping[str, Any]
    request_id: str

    @classmethod
    def of(cls, served: ServedModel, given: Mapping[str, Any], request_id: str) -> "_Work":
        own, later = served.read_parameters(given)
        return cls(served, served.require_client(), own, later, request_id)


@dataclass(frozen=True)
class _Piece(Item):
    """What a model found in an instance, an instance itself."""

    instance: Any = None

    def open(self, codec: Codec, limits: Limits, index: int) -> Any:
        return self.instance

    def load(self, codec: Codec, opened: Any, index: int) -> Any:
        return opened


class Pipeline:
    """Runs requests against one gateway."""

    def __init__(self, gateway: TritonGateway, decoder: Decoder) -> None:
        self.gateway, self.decoder = gateway, decoder

    def predict(
        self,
        served: ServedModel,
        version: str,
        items: Sequence[Item],
        parameters: Mapping[str, Any],
        request_id: str = "",
        session: Session | None = None,
    ) -> Predictions:
        """Raises a ServingError; what a client's own code raises becomes InferenceFailed."""
        work = _Work.of(served, parameters, request_id)
        client = work.client
        waiting: deque[tuple[_Batch, Call]] = deque()
        done = Predictions("", [])
        steps = _Steps.of(served, items, session)
        try:
            for first, batch in self._batches(client, steps):
                flags = steps.flags(first, len(batch.instances))
                call = self.gateway.call(served.model.name, version, batch.inputs, request_id, flags)
                waiting.append((batch, call))
                if len(waiting) > 1 or steps.goes_on(first + len(batch.instances)):
                    call.send()
                if len(waiting) >= steps.ahead:
                    done = self._finish(work, *waiting.popleft(), done)
            while waiting:
                done = self._finish(work, *waiting.popleft(), done)
        finally:
            for _, call in waiting:
                call.cancel()
        return done

    def stream(
        self,
        served: ServedModel,
        version: str,
        items: Sequence[Item],
        parameters: Mapping[str, Any],
        request_id: str = "",
        session: Session | None = None,
        started: Callable[[Responses], None] = lambda responses: None,
    ) -> Generator[Part, None, None]:
        """The same for a model that gives any number of responses: a part for each, as it comes; `started` is
        told of every batch that went to Triton, so that it can be closed by another thread."""
        work = _Work.of(served, parameters, request_id)
        client = work.client
        steps = _Steps.of(served, items, session)
        for first, batch in self._batches(client, steps):
            flags = steps.flags(first, len(batch.instances))
            inputs = raw_tensors(batch.inputs)
            with closing(self.gateway.stream(served.model.name, version, inputs, request_id, flags)) as responses:
                started(responses)
                for reply in responses:
                    yield Part(reply.version, first, self._predictions(work, batch, reply))

    def _batches(self, client: ModelClient, steps: "_Steps") -> Iterator[tuple[int, _Batch]]:
        """Each with the number of its first instance."""
        first = 0
        while first < len(steps.items):
            batch = self._prepare(client, first, steps.items[first : first + steps.size])
            yield first, batch
            first += len(batch.instances)

    def _prepare(self, client: ModelClient, first: int, items: Sequence[Item]) -> _Batch:
        with self.decoder.turn(client.codec.name, self.gateway.timeout):
            with stage("decode"):
                instances = self.decoder.decode(client, first, items)
            with stage("preprocess"):
                tensors = self._preprocess(client, first, instances)
        names = {spec.name for spec in client.model.inputs}
        inputs = {name: array for name, array in tensors.items() if name in names}
        if not client.model.max_batch_size:
            inputs = {name: array[0] for name, array in inputs.items()}
        return _Batch(instances, tensors, inputs)

    def _preprocess(self, client: ModelClient, first: int, instances: Sequence[Any]) -> Tensors:
        try:
            return _run(client, "preprocess", lambda: client.preprocess(instances))
        except DecodingError as err:  # a client counts within its batch, the caller within the request
            raise err.at(first + (err.instance or 0)) from err

    def _finish(self, work: _Work, batch: _Batch, call: Call, done: Predictions) -> Predictions:
        reply = call.result()
        predictions = self._predictions(work, batch, reply)
        instance = batch.instances[0] if not done.predictions else done.instance
        return Predictions(reply.version, done.predictions + predictions, instance)

    def _predictions(self, work: _Work, batch: _Batch, reply: Reply) -> list[Any]:
        """In a chain with what the second model says of each piece that the first has found, all pieces in batches."""
        client, then = work.client, work.served.then
        predictions = self._postprocess(client, batch, reply, work.parameters)
        if then is None:
            return predictions
        found = [client.pieces(*pair) for pair in zip(batch.instances, predictions, strict=True)]
        pieces = [_Piece("piece", instance=piece) for each in found for piece in each]
        answers = iter(self.predict(then, "", pieces, work.later, work.request_id).predictions)
        return [
            client.joined(prediction, [next(answers) for _ in each])
            for prediction, each in zip(predictions, found, strict=True)
        ]

    def _postprocess(
        self, client: ModelClient, batch: _Batch, reply: Reply, parameters: Mapping[str, Any]
    ) -> list[Any]:
        outputs = reply.outputs
        if not client.model.max_batch_size:
            outputs = {name: np.expand_dims(array, 0) for name, array in outputs.items()}
        with stage("postprocess"):
            predictions = _run(
                client, "postprocess", lambda: client.postprocess(outputs, batch.tensors, batch.instances, parameters)
            )
        if len(predictions) != len(batch.instances):
            raise InferenceFailed(
                f"the client of model '{client.model.name}' made {len(predictions)} predictions of "
                f"{len(batch.instances)} instances"
            )
        return list(predictions)


@dataclass(frozen=True)
class _Steps:
    """A request's instances in batches; in a session one by one, each after the answer to the one before."""

    items: Sequence[Item]
    size: int
    ahead: int
    session: Session | None

    @classmethod
    def of(cls, served: ServedModel, items: Sequence[Item], session: Session | None) -> "_Steps":
        if served.sequencing and session is None:
            session = Session.of_one_request(served.sequencing)
        if session:
            return cls(items, 1, 1, session)
        return cls(items, served.model.max_batch_size or 1, AHEAD, None)

    def flags(self, first: int, count: int) -> Parameters:
        """What Triton must know of the place in its sequence of `count` instances from `first` on."""
        if self.session is None:
            return {}
        return self.session.parameters(first=first == 0, last=first + count == len(self.items))

    def goes_on(self, count: int) -> bool:
        """Whether a batch is prepared while the one that ends with instance `count` is worked on."""
        return self.ahead > 1 and count < len(self.items)


def _run(client: ModelClient, step: str, function: Callable[[], Result]) -> Result:
    try:
        return function()
    except ServingError:
        raise
    except Exception as err:
        raise InferenceFailed(
            f"the client of model '{client.model.name}' failed in {step} ({type(err).__name__}); "
            "the log has the details under this request_id"
        ) from err
