"""Instances through a client and Triton: decode, preprocess, infer, postprocess, in batches.

n instances give n predictions in the same order; a batch has at most max_batch_size of them.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from clients.base import ModelClient, Tensors
from serving.codecs import Limits
from serving.errors import DecodingError, InferenceFailed, ServingError
from serving.invocation import Item
from serving.registry import ServedModel
from serving.triton import Call, TritonGateway

AHEAD = 2  # batches in Triton at once for one request: the next is prepared while one is worked on
Result = TypeVar("Result")


@dataclass(frozen=True)
class Predictions:
    """One prediction per instance, the decoded instances, and the version that answered."""

    version: str
    predictions: list[Any]
    instances: list[Any]


@dataclass(frozen=True)
class _Batch:
    instances: list[Any]
    tensors: Tensors
    call: Call


class Pipeline:
    """Runs requests against one gateway; `decoders` of them decode and preprocess at a time.

    The bound keeps memory and the interpreter's lock free of a crowd: the rest waits for its turn.
    """

    def __init__(self, gateway: TritonGateway, limits: Limits, decoders: int) -> None:
        self.gateway, self.limits = gateway, limits
        self._turn = threading.BoundedSemaphore(decoders)

    def predict(
        self,
        served: ServedModel,
        version: str,
        items: Sequence[Item],
        parameters: Mapping[str, Any],
        request_id: str = "",
    ) -> Predictions:
        """Raises a ServingError; what a client's own code raises becomes InferenceFailed."""
        client = served.require_client()
        checked = client.read_parameters(parameters)
        waiting: deque[_Batch] = deque()
        done = Predictions("", [], [])
        try:
            for first, chunk in _chunks(items, served.model.max_batch_size or 1):
                waiting.append(self._start(client, version, first, chunk, request_id))
                if len(waiting) >= AHEAD:
                    done = self._finish(client, waiting.popleft(), checked, done)
            while waiting:
                done = self._finish(client, waiting.popleft(), checked, done)
        finally:
            for batch in waiting:
                batch.call.cancel()
        return done

    def _start(self, client: ModelClient, version: str, first: int, items: Sequence[Item], request_id: str) -> _Batch:
        with self._turn:
            instances = [item.decode(client.codec, self.limits, first + offset) for offset, item in enumerate(items)]
            tensors = self._preprocess(client, first, instances)
        names = {spec.name for spec in client.model.inputs}
        inputs = {name: array for name, array in tensors.items() if name in names}
        if not client.model.max_batch_size:
            inputs = {name: array[0] for name, array in inputs.items()}
        return _Batch(instances, tensors, self.gateway.start(client.model.name, version, inputs, request_id))

    def _preprocess(self, client: ModelClient, first: int, instances: Sequence[Any]) -> Tensors:
        try:
            return _run(client, "preprocess", lambda: client.preprocess(instances))
        except DecodingError as err:  # a client counts within its batch, the caller within the request
            raise err.at(first + (err.instance or 0)) from err

    def _finish(
        self, client: ModelClient, batch: _Batch, parameters: Mapping[str, Any], done: Predictions
    ) -> Predictions:
        reply = batch.call.result()
        outputs = reply.outputs
        if not client.model.max_batch_size:
            outputs = {name: np.expand_dims(array, 0) for name, array in outputs.items()}
        predictions = _run(
            client,
            "postprocess",
            lambda: client.postprocess(outputs, batch.tensors, batch.instances, parameters),
        )
        if len(predictions) != len(batch.instances):
            raise InferenceFailed(
                f"the client of model '{client.model.name}' made {len(predictions)} predictions of "
                f"{len(batch.instances)} instances"
            )
        return Predictions(reply.version, done.predictions + list(predictions), done.instances + batch.instances)


def _chunks(items: Sequence[Item], size: int) -> Iterator[tuple[int, Sequence[Item]]]:
    for first in range(0, len(items), size):
        yield first, items[first : first + size]


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
