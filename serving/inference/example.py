"""A model's example, asked as a caller would."""

from collections import deque

from serving.bodies.instances import Instances
from serving.decoding import Item
from serving.errors import DecodingError, InvalidRequest, ModelFailed, NotAcceptable
from serving.inference.service import Inference
from serving.request import Request
from serving.served_model import ServedModel


def try_example(inference: Inference, served: ServedModel) -> None:
    """Raises a ServingError; a model without a client has no example."""
    if not served.client and not served.client_error:
        return
    item = Item("example", raw=served.example())
    try:
        _infer(inference, served, Request("canary", Instances([item])))
    except (DecodingError, InvalidRequest) as err:
        raise ModelFailed(served.name, f"its example is refused: {err}") from err


def _infer(inference: Inference, served: ServedModel, request: Request) -> None:
    try:
        inference.once(served, request)
    except NotAcceptable:  # the model only streams
        deque(inference.stream(served, request).lines, maxlen=0)
