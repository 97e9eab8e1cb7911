"""The routes of multi-model mode that load, unload and list models.

A 404 tells the platform to load the model, a 507 to unload others first: so no other error has these statuses.
"""

import base64
import binascii
import http.client

import orjson
from flask import Flask, Response

from serving.codecs import describe
from serving.errors import InvalidRequest, ModelNotLoaded, ModelNotReady, by_code
from serving.front.incoming import incoming
from serving.front.replies import json_reply
from serving.headers import TARGET_MODEL
from serving.host.network import LocalConnection
from serving.inference.registry import Registry
from serving.models.table import READY, Entry
from serving.settings.table import Settings

PAGE, LARGEST_PAGE = 100, 1000


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
        """{"model_name", "url"}: 200, or 409, 507, 400."""
        name, url = _read_load()
        self._ask("POST", name=name, url=url, target=incoming().headers.get(TARGET_MODEL) or name)
        return json_reply({"modelName": name, "modelUrl": url})

    def unload(self, name: str) -> Response:
        """200 when its memory is free; 404."""
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
        """Have the manager do it. Raise what it answers, or ModelNotReady."""
        connection = LocalConnection(self._manager, self._timeout)
        try:
            connection.request(method, "/models", orjson.dumps(fields))
            reply = connection.getresponse()
            answer = orjson.loads(reply.read())
        except (http.client.HTTPException, OSError) as err:
            raise ModelNotReady("the process that loads models is being started (again): try again shortly") from err
        finally:
            connection.close()
        if reply.status != http.client.OK:
            raise by_code(answer["code"], answer["error"])


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
