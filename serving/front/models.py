"""The routes of multi-model mode that load, unload and list models.

A 404 tells the platform to load the model, a 507 to unload others first: so no other error has these statuses.
"""

import base64
import binascii

import orjson
from flask import Flask, Response

from serving.codecs import describe
from serving.errors import InvalidRequest
from serving.front.incoming import incoming
from serving.front.replies import json_reply
from serving.headers import TARGET_MODEL
from serving.multimodel.control import LARGEST_PAGE, PAGE, MultiModel
from serving.multimodel.records import LoadedModel


class ModelRoutes:
    """The platform's calls; a model's name may hold slashes, plain or as %2F."""

    def __init__(self, models: MultiModel) -> None:
        self._models = models

    def add_to(self, app: Flask) -> None:
        app.url_map.merge_slashes = False
        app.add_url_rule("/models", view_func=self.page, methods=["GET"])
        app.add_url_rule("/models", view_func=self.load, methods=["POST"])
        app.add_url_rule("/models/<path:name>", view_func=self.get, methods=["GET"])
        app.add_url_rule("/models/<path:name>", view_func=self.unload, methods=["DELETE"])

    def load(self) -> Response:
        """{"model_name", "url"}: 200, or 409, 507, 400."""
        name, url = _read_load()
        self._models.load(name, url, incoming().headers.get(TARGET_MODEL) or name)
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


def _describe(model: LoadedModel) -> dict[str, str]:
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
