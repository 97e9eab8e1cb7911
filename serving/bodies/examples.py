"""Tests a model by sending it its own example, as a caller would."""

import traceback
from dataclasses import replace
from pathlib import Path

from serving.bodies.decoder import Decoder, Item
from serving.bodies.instances import Instances
from serving.errors import (
    DecodingError,
    InferenceFailed,
    InvalidRequest,
    LoadFailed,
    ModelFailed,
    NotAcceptable,
    described,
)
from serving.headers import JSON_LINES
from serving.job import Run
from serving.model_status.served_model import ServedModel
from serving.request import Request
from serving.triton.connection import BackendDied
from serving.triton.gateway import TritonGateway


def try_example(gateway: TritonGateway, decoder: Decoder, served: ServedModel) -> None:
    """Send the model its example. Raise a ServingError or BackendDied if the example is refused or
    not answered, or if the model's client could not be created. Do nothing if the model has no
    client."""
    if not served.client and not served.client_error:
        return
    request = Request("example", decoder=decoder)
    try:
        instances = Instances([Item("example", raw=served.example())])
        try:
            instances.bind(served, request).answer(gateway)
        except NotAcceptable:  # raised if the model can only answer with a stream
            job = instances.bind(served, replace(request, stream=JSON_LINES))
            for result in Run(job, gateway).results():
                job.line(result)
    except (DecodingError, InvalidRequest) as err:
        raise ModelFailed(served.name, f"its example is refused: {err}") from err


def check_loaded_model(gateway: TritonGateway, decoder: Decoder, served: ServedModel) -> None:
    """Test a newly loaded model with its example. If the test fails, raise a ServingError. If the
    client's code failed on the example, the error is a LoadFailed that names the line."""
    if served.client_error:
        raise LoadFailed(served.client_error)
    try:
        try_example(gateway, decoder, served)
    except InferenceFailed as err:
        raise LoadFailed(_failure_location(err.__cause__) or str(err)) from err
    except BackendDied as err:
        raise LoadFailed(f"a process of it died when its example was asked ({err})") from err


def _failure_location(cause: BaseException | None) -> str:
    """Return a message that says which exception a client's code raised, and in which line. Return
    "" if there is no exception, or if it came from Triton."""
    if cause is None or type(cause).__module__.startswith("grpc"):
        return ""
    last = traceback.extract_tb(cause.__traceback__)[-1]
    line = f"{Path(last.filename).name}, line {last.lineno}"
    return f"its client failed on the example: {described(cause)} ({line})"
