"""The routes of multi-model mode: SageMaker's five under /models, and /invocations by Target-Model.

A 404 tells the platform to load the model, a 507 to unload others first: so no other error has these statuses.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import orjson
from flask import Flask, Response, request

from serving.bodies.invocation import ATTRIBUTES, TARGET_MODEL, Body, Target, choose_target, read_attributes, target_in
from serving.codecs import describe
from serving.errors import InvalidRequest
from serving.front.replies import json_reply
from serving.inference.served_model import ServedModel
from serving.multimodel.loaded import LoadedModel
from serving.multimodel.loader import LARGEST_PAGE, PAGE, MultiModel

ReadRequest = Callable[[], tuple[Body, Target]]
Answer = Callable[[ServedModel, str, Body, Mapping[str, str]], Response]


def add_routes(app: Flask, models: MultiModel, read_request: ReadRequest, answer: Answer) -> None:
    """A model's name may hold slashes, plain or as %2F."""
    routes = Routes(models, read_request, answer)
    app.url_map.merge_slashes = False
    app.add_url_rule("/invocations", view_func=routes.invocations, methods=["POST"])
    app.add_url_rule("/models", view_func=routes.page, methods=["GET"])
    app.add_url_rule("/models", view_func=routes.load, methods=["POST"])
    app.add_url_rule("/models/<path:name>", view_func=routes.get, methods=["GET"])
    app.add_url_rule("/models/<path:name>", view_func=routes.unload, methods=["DELETE"])
    app.add_url_rule("/models/<path:name>/invoke", view_func=routes.invoke, methods=["POST"])


class Routes:
    """`read_request` reads a call's body, `answer` answers it once its model is known."""

    def __init__(self, models: MultiModel, read_request: ReadRequest, answer: Answer) -> None:
        self._models, self._read_request, self._answer = models, read_request, answer

    def load(self) -> Response:
        """{"model_name", "url"}: 200, or 409, 507, 400."""
        name, url = _read_load()
        self._models.load(name, url, request.headers.get(TARGET_MODEL) or name)
        return json_reply({"modelName": name, "modelUrl": url})

    def unload(self, name: str) -> Response:
        """200 when its memory is free; 404."""
        self._models.unload(name)
        return Response(status=200, mimetype="application/json")

    def get(self, name: str) -> Response:
        """The name and the URL; 404."""
        return json_reply(_describe(self._models.get(name)))

    def page(self) -> Response:
        """Those that are ready; ?limit and ?next_page_token page through them."""
        models, last = self._models.page(_read_token(), _read_limit())
        more = {"nextPageToken": base64.urlsafe_b64encode(last.encode()).decode()} if last else {}
        return json_reply({"models": [_describe(model) for model in models]} | more)

    def invoke(self, name: str) -> Response:
        """A call to the model that the path names, whatever names stand in its body."""
        body, in_body = self._read_request()
        attributes = read_attributes(request.headers.get(ATTRIBUTES, ""))
        _, version = choose_target(Target(t.place, None, t.version) for t in _targets(attributes, in_body))
        return self._call(name, version, body, attributes)

    def invocations(self) -> Response:
        """A call to the model that the headers, the query or the body name."""
        body, in_body = self._read_request()
        attributes = read_attributes(request.headers.get(ATTRIBUTES, ""))
        header = Target("the header Target-Model", request.headers.get(TARGET_MODEL) or None)
        name, version = choose_target([header, *_targets(attributes, in_body)])
        if name is None:
            raise InvalidRequest(
                "no model is named; name one in X-Amzn-SageMaker-Target-Model, or POST /models/NAME/invoke"
            )
        return self._call(name, version, body, attributes)

    def _call(self, name: str, version: str | None, body: Body, attributes: Mapping[str, str]) -> Response:
        with ExitStack() as stack:
            served = stack.enter_context(self._models.use(name))
            if version is not None:
                self._models.check_version(served, version)
            response = self._answer(served, version or "", body, attributes)
            if response.is_streamed:
                response.call_on_close(stack.pop_all().close)
        return response


def _targets(attributes: Mapping[str, str], in_body: Target) -> list[Target]:
    in_attributes = target_in("the header Custom-Attributes", attributes)
    return [in_attributes, target_in("the query string", request.args), in_body]


def _describe(model: LoadedModel) -> dict[str, str]:
    return {"modelName": model.name, "modelUrl": model.url}


def _read_load() -> tuple[str, str]:
    expected = '{"model_name": NAME, "url": FOLDER}, both strings'
    try:
        document = orjson.loads(request.get_data())
    except orjson.JSONDecodeError as err:
        raise InvalidRequest(f"the body is not valid JSON ({err}); it must be {expected}") from err
    fields = document if isinstance(document, dict) else {}
    name, url = fields.get("model_name"), fields.get("url")
    if not (isinstance(name, str) and isinstance(url, str)):
        raise InvalidRequest(f"the body must be {expected}; got {describe(document)}")
    return name, url


def _read_token() -> str:
    token = request.args.get("next_page_token", "")
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except (binascii.Error, UnicodeError) as err:
        raise InvalidRequest(f"next_page_token={token!r} is none that a page has given") from err


def _read_limit() -> int:
    limit = request.args.get("limit", str(PAGE))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit) <= LARGEST_PAGE):
        raise InvalidRequest(f"limit={limit!r} must be a whole number from 1 to {LARGEST_PAGE}")
    return int(limit)
