"""The routes whose path names a model: those of multi-model mode that load, unload and list models, and KServe's own.

In multi-model mode a 404 tells the platform to load the model, a 507 to unload others first: so no other error has
these statuses. Of /v2/models/MODEL[/versions/VERSION]/… requests with a body come here, and nginx hands those without
one (health, metadata, statistics) to Triton.
"""

import base64
import binascii
import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import orjson
from flask import Flask, Response
from prometheus_client import Counter

from serving.bodies.documents import parse_object, read_binary
from serving.bodies.flat import FlatBody
from serving.bodies.kserve import HEADER_LENGTH, TensorBody
from serving.bodies.reading import Body
from serving.codecs import describe
from serving.errors import InvalidRequest, LoadFailed, ModelNotLoaded, ModelNotReady, ServingError, by_code
from serving.front.incoming import Incoming, incoming
from serving.front.replies import json_reply
from serving.front.services import services
from serving.headers import EVENT_STREAM, TARGET_MODEL
from serving.host.network import LocalConnection
from serving.models.registry import Registry
from serving.models.table import READY, Entry
from serving.request import PATH, Target
from serving.settings.table import Settings

PAGE, LARGEST_PAGE = 100, 1000
MANAGER_SECONDS, PAUSE = 10.0, 0.05  # a start of the model manager takes 0.5 s, on busy processors a few


class ModelRoutes:
    """The platform's calls; a model's name may hold slashes, plain or as %2F. The model manager loads and unloads."""

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry, self._manager = registry, settings.manager_socket
        self._timeout = settings.load_timeout + 5.0  # the manager answers first

    def add_to(self, app: Flask) -> None:
        app.url_map.merge_slashes = False
        app.add_url_rule("/models", view_func=self.page, methods=["GET"])
        app.add_url_rule("/models", view_func=self.load, methods=["POST"])
        app.add_url_rule("/models/<path:name>", view_func=self.get, methods=["GET"])
        app.add_url_rule("/models/<path:name>", view_func=self.unload, methods=["DELETE"])

    def load(self) -> Response:
        """{"model_name", "url"}: 200, or 409, 507, 400. A model whose client cannot be made is unloaded again."""
        with _counted(services().metrics.loads):
            name, url = _read_load()
            target = incoming().headers.get(TARGET_MODEL) or name
            self._ask("POST", name=name, url=url, target=target)
            if reason := self._registry.get(target).client_error:
                self._ask("DELETE", name=name)
                raise LoadFailed(f"'{target}' cannot be loaded: {reason}")
        return json_reply({"modelName": name, "modelUrl": url})

    def unload(self, name: str) -> Response:
        """200 when its memory is free; 404."""
        with _counted(services().metrics.unloads):
            self._ask("DELETE", name=name)
        return Response(status=200, mimetype="application/json")

    def get(self, name: str) -> Response:
        """The name and the URL; 404."""
        entry = self._registry.models().entries.get(name)
        if entry is None or entry.state != READY:
            raise ModelNotLoaded(name)
        return json_reply(_describe(entry))

    def page(self) -> Response:
        """Those that are ready; ?limit and ?next_page_token page through them."""
        after, limit = _read_token(), _read_limit()
        entries = self._registry.models().entries
        ready = sorted(name for name, entry in entries.items() if name > after and entry.state == READY)
        more = len(ready) > limit
        token = {"nextPageToken": base64.urlsafe_b64encode(ready[limit - 1].encode()).decode()} if more else {}
        return json_reply({"models": [_describe(entries[name]) for name in ready[:limit]]} | token)

    def _ask(self, method: str, **fields: str) -> None:
        """Have the manager do it. Raise what it answers, or ModelNotReady. It listens a moment after tritonserver, or
        is started again: until it takes the connection, nothing has been asked, so this waits for it."""
        connection = LocalConnection(self._manager, self._timeout)
        try:
            self._connect(connection)
            connection.request(method, "/models", orjson.dumps(fields))
            reply = connection.getresponse()
            answer = orjson.loads(reply.read())
        except (http.client.HTTPException, OSError) as err:
            raise ModelNotReady("the process that loads models is being started (again): try again shortly") from err
        finally:
            connection.close()
        if reply.status != http.client.OK:
            raise by_code(answer["code"], answer["error"])

    def _connect(self, connection: LocalConnection) -> None:
        """Raise OSError."""
        end = time.monotonic() + MANAGER_SECONDS
        while True:
            try:
                return connection.connect()
            except OSError:
                if time.monotonic() > end:
                    raise
            time.sleep(PAUSE)


@contextmanager
def _counted(results: Counter) -> Iterator[None]:
    """Count the result: "ok", or the error's code."""
    result = "ok"
    try:
        yield
    except Exception as err:
        result = err.code if isinstance(err, ServingError) else ServingError.code
        raise
    finally:
        results.labels(result).inc()


def _describe(model: Entry) -> dict[str, str]:
    return {"modelName": model.name, "modelUrl": model.url}


def _read_load() -> tuple[str, str]:
    expected = '{"model_name": NAME, "url": FOLDER}, both strings'
    try:
        document = orjson.loads(incoming().get_data())
    except orjson.JSONDecodeError as err:
        raise InvalidRequest(f"the body is not valid JSON ({err}); it must be {expected}") from err
    fields = document if isinstance(document, dict) else {}
    name, url = fields.get("model_name"), fields.get("url")
    if not (isinstance(name, str) and isinstance(url, str)):
        raise InvalidRequest(f"the body must be {expected}; got {describe(document)}")
    return name, url


def _read_token() -> str:
    token = incoming().args.get("next_page_token", "")
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except (binascii.Error, UnicodeError) as err:
        raise InvalidRequest(f"next_page_token={token!r} is none that a page has given") from err


def _read_limit() -> int:
    limit = incoming().args.get("limit", str(PAGE))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit) <= LARGEST_PAGE):
        raise InvalidRequest(f"limit={limit!r} must be a whole number from 1 to {LARGEST_PAGE}")
    return int(limit)


Answer = Callable[[Body, Target, str], Response]
MODEL = "/v2/models/<name>"
VERSION = "/v2/models/<name>/versions/<version>"


class KServeRoutes:
    """`answer` answers a body for the target that the path names, as a stream of the type that it gets."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def add_to(self, app: Flask) -> None:
        for path in (MODEL, VERSION):
            app.add_url_rule(f"{path}/infer", view_func=self.infer, methods=["POST"])
            app.add_url_rule(f"{path}/generate", view_func=self.generate, methods=["POST"])
            app.add_url_rule(f"{path}/generate_stream", view_func=self.generate_stream, methods=["POST"])

    def infer(self, name: str, version: str | None = None) -> Response:
        """Tensors, as JSON or with binary data behind it."""
        return self._answer(read_tensors(incoming()), Target(PATH, name, version), "")

    def generate(self, name: str, version: str | None = None) -> Response:
        """A flat object, answered by exactly one response."""
        return self._answer(_read_flat(incoming()), Target(PATH, name, version), "")

    def generate_stream(self, name: str, version: str | None = None) -> Response:
        """The same, answered by any number of responses."""
        return self._answer(_read_flat(incoming()), Target(PATH, name, version), EVENT_STREAM)


def read_tensors(source: Incoming) -> TensorBody:
    """Raises InvalidRequest."""
    data = source.whole()
    length = source.headers.get(HEADER_LENGTH)
    if length is not None:
        return read_binary(length, HEADER_LENGTH, data, is_kserve=True)
    return TensorBody(parse_object(data, "the body"), memoryview(b""), len(data), is_kserve=True)


def _read_flat(source: Incoming) -> FlatBody:
    document = parse_object(source.whole(), "the body")
    if not document:
        raise InvalidRequest("the body is an empty object: it names no input")
    return FlatBody(document, generates=True)
