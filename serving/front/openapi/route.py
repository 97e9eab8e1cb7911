"""GET /openapi.json. What writes it is imported when somebody asks."""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import orjson
from flask import Response, current_app

from serving.bodies.instances import Instances
from serving.decoding import Item
from serving.errors import ServingError
from serving.front.incoming import incoming
from serving.front.replies import json_reply
from serving.front.services import services
from serving.request import Request
from serving.served_model import ServedModel

UNSAID = {"HEAD", "OPTIONS"}
FILES = "/docs/"  # of a page are no part of the API


def openapi() -> Response:
    """The API of this server, with the models that it serves now, as OpenAPI 3.1."""
    from serving.front.openapi.document import document

    versions, archives = _versions(), _archives()
    served = list(_served(versions if archives is None else archives))
    replies = {model.name: reply for model in served if (reply := _reply(model))}
    known = {model.name: versions[model.name] for model in served}
    if archives is not None:
        archives = {archive: name for archive, name in archives.items() if name in known}
    return json_reply(document(_routes(), served, replies, known, archives))


def _routes() -> Iterator[tuple[str, str, str]]:
    for rule in current_app.url_map.iter_rules():
        if rule.rule.startswith(FILES):
            continue
        text = inspect.getdoc(current_app.view_functions[rule.endpoint]) or ""
        yield from ((rule.rule, method, text) for method in sorted((rule.methods or set()) - UNSAID))


def _versions() -> dict[str, list[str]]:
    """Of each model those that are ready."""
    index = services().registry.index()
    ready = {name: [each.version for each in found.values() if each.state == "READY"] for name, found in index.items()}
    return {name: sorted(versions) for name, versions in sorted(ready.items()) if versions}


def _archives() -> dict[str, str] | None:
    """In multi-model mode Triton's name of each model by the one that the platform loaded it by."""
    models = services().multi_model
    if models is None:
        return None
    from serving.multimodel.control import LARGEST_PAGE

    loaded, _ = models.page("", LARGEST_PAGE)
    return {model.name: model.triton_name for model in loaded}


def _served(names: Iterable[str]) -> Iterator[ServedModel]:
    for name in names:
        with suppress(ServingError), services().models.use(name) as served:
            yield served


def _reply(served: ServedModel) -> Any:
    """What the model answers to its client's example; None where it does not."""
    from serving.front.openapi.schemas import example_of

    if not served.client:
        return None
    deadline = incoming().deadline(services().gateway.timeout)
    request = Request("openapi", Instances([Item("example", raw=example_of(served))]), deadline=deadline)
    with suppress(ServingError, orjson.JSONDecodeError):
        return orjson.loads(services().inference.once(served, request).content)
    return None
