"""Sends requests to the model manager, the process that loads and unloads models."""

import time
from http import HTTPStatus

import orjson

from serving.bodies.schemas import JsonObject
from serving.budget import seconds_left
from serving.errors import ModelNotFound, ModelNotReady, rebuilt
from serving.host.network import ask
from serving.named_value import quoted
from serving.repository.paths import is_nameable
from serving.settings.settings import Settings

# How long to wait for the model manager to start, which takes 0.5 s, or several seconds on a busy
# machine.
MANAGER_SECONDS = 10.0
# How long to wait until the manager says whether it begins to load a model. A slow bucket may take
# longer; then Registry repeats the request.
WANT_SECONDS = 2.0
PAUSE = 0.05
# what connecting to a Unix socket raises if no process listens, or if too many connections wait
NOT_LISTENING = (BlockingIOError, ConnectionRefusedError, FileNotFoundError)


def ask_manager(
    settings: Settings, method: str, path: str, seconds: float, **fields: str
) -> JsonObject:
    """Send a request with the JSON object `fields` to the model manager, and return its reply.
    `seconds` is the time limit of each socket operation. If the manager is not listening yet, wait
    for it for `seconds` or MANAGER_SECONDS, whichever is less. Raise the error that the manager
    returns, or ModelNotReady if it does not answer."""
    try:
        return _exchange(settings, method, path, seconds, **fields)
    except OSError as err:
        raise ModelNotReady(
            "the process that loads models is being started (again): try again shortly"
        ) from err


def want_model(settings: Settings, name: str) -> None:
    """Make the model manager begin to load a model. If the manager does not answer in time, just
    return, because Registry calls this function again. Raise the error that says why the model
    cannot be loaded, or TooLate if the request has no time left."""
    if not is_nameable(name):
        raise ModelNotFound(f"Request for unknown model: {quoted(name)} is not the name of a model")
    seconds = seconds_left(WANT_SECONDS)
    try:
        _exchange(settings, "POST", "/wanted", seconds, name=name)
    except OSError:
        return


def _exchange(
    settings: Settings, method: str, path: str, seconds: float, **fields: str
) -> JsonObject:
    """Do what `ask_manager` does, but raise OSError if the manager does not answer."""
    # Send no body with a GET. The manager would not read it, and closing a socket with unread data
    # resets the connection.
    body = orjson.dumps(fields) if fields else None
    end = time.monotonic() + min(seconds, MANAGER_SECONDS)
    while True:
        try:
            status, reply = ask(
                settings.manager_socket, path, seconds, method, most=None, body=body
            )
            break
        except NOT_LISTENING:
            if time.monotonic() > end:
                raise
            time.sleep(PAUSE)
    answer: JsonObject = orjson.loads(reply)
    if status != HTTPStatus.OK:
        raise rebuilt(**answer)
    return answer
