"""Defines the routes of other servers' APIs, so that clients of those servers work unchanged
(SERVE_DOORS)."""

from collections.abc import Callable
from functools import partial

from flask import Blueprint, Response
from flask.sansio.blueprints import BlueprintSetupState
from werkzeug.routing import PathConverter

from serving.bodies.documents import read_instances
from serving.bodies.hugging_face import Embed, Pipeline, Predict, Similarity
from serving.bodies.instances import Instances
from serving.bodies.openai import Embeddings
from serving.bodies.other_apis import ApiBody
from serving.bodies.reading import Body
from serving.bodies.rerank import Rerank
from serving.bodies.schemas import JsonObject, read
from serving.errors import InvalidRequest
from serving.front.incoming import Incoming, incoming
from serving.front.models import managed
from serving.front.replies import json_reply
from serving.front.services import services
from serving.named_value import unknown
from serving.request import PATH, Target

# Maps each route to the class of its body, which also creates the reply. These are the routes that
# the attribute `route` in Custom-Attributes can name.
BY_ATTRIBUTE: dict[str, type[ApiBody]] = {
    "/v1/embeddings": Embeddings,
    "/v1/rerank": Rerank,
    "/v2/rerank": Rerank,
    "/rerank": Rerank,
    "/embed": Embed,
    "/predict": Predict,
    "/similarity": Similarity,
    "/pipeline": Pipeline,
}
# all routes with such a body, including those whose path names the model
BODIES = BY_ATTRIBUTE | {
    # TEI's clients use the base URL /models/NAME to call one model
    "/models/<path:name>/rerank": Rerank,
    "/models/<path:name>/embed": Embed,
    "/models/<path:name>/predict": Predict,
    "/models/<path:name>/similarity": Similarity,
    "/pipeline/<path:name>": Pipeline,
}
ROUTE = "route"  # the attribute with which a request to /invocations can name a route
PREDICT = "/v1/models/<path:name>:predict"
OWNER = "triton-multi-model"


def other_api_routes(infer: Callable[[Callable[[Incoming], Body], Target], Response]) -> Blueprint:
    """Return a blueprint with the routes. `infer` answers inference requests (predictor.py)."""
    routes = Blueprint("other_apis", __name__)

    def add_route(path: str, body: type[ApiBody]) -> None:
        def answer(name: str = "") -> Response:
            target = Target(PATH, name) if name else incoming().target
            return infer(partial(read_api, body), target)

        answer.__doc__ = body.__doc__  # for /openapi.json
        routes.add_url_rule(path, endpoint=path, view_func=answer, methods=["POST"])

    def predict(name: str) -> Response:
        """Answer {"instances": […]} with {"predictions": […]}, as KServe v1 does."""
        return infer(read_predict, Target(PATH, name))

    routes.record_once(_add_converter)
    for path, body in BODIES.items():
        add_route(path, body)
    routes.add_url_rule(PREDICT, view_func=predict, methods=["POST"])
    routes.add_url_rule("/v1/models", view_func=models, methods=["GET"])
    routes.add_url_rule("/v1/models/<plain:name>", view_func=model, methods=["GET"])
    return routes


class PlainName(PathConverter):
    """Matches a model's name without a colon, because in KServe v1 `:predict` follows the name."""

    regex = "[^/:][^:]*?"


def _add_converter(state: BlueprintSetupState) -> None:
    state.app.url_map.converters["plain"] = PlainName


def read_api(body: type[ApiBody], source: Incoming) -> ApiBody:
    """Parse the whole body of the request, and return it as an object of the class `body`. Raise a
    ServingError or an HTTPException."""
    return body.of(source.whole_body())


def read_by_attribute(source: Incoming) -> ApiBody:
    """Parse the body of a request to /invocations as if it had been sent to the route that the
    attribute `route` names. Raise a ServingError or an HTTPException."""
    route = source.attributes[ROUTE]
    if route not in BY_ATTRIBUTE:
        raise InvalidRequest(f"Custom-Attributes: {unknown('route', route, BY_ATTRIBUTE)}")
    return read_api(BY_ATTRIBUTE[route], source)


def read_predict(source: Incoming) -> Instances:
    """Parse the body of a request to KServe v1. Raise a ServingError or an HTTPException."""
    return read_instances(read(JsonObject, source.whole_body()), "instances")


@managed
def models() -> Response:
    """List the models that are ready, for clients of OpenAI's API (`data`) and of KServe v1
    (`models`)."""
    names = sorted(services().registry.table.look().ready)
    return json_reply({"object": "list", "data": list(map(_entry, names)), "models": names})


def model(name: str) -> Response:
    """Describe a model that is ready, for clients of OpenAI's API and of KServe v1.

    KServe's clients read `name` and `ready`. If the model is not ready, an error says why.
    """
    services().monitoring.check_model(name)
    return json_reply({**_entry(name), "name": name, "ready": True})


def _entry(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": OWNER}
