"""The routes of other servers' APIs, whose clients work unchanged (SERVE_DOORS)."""

from collections.abc import Callable
from functools import partial

from flask import Blueprint, Response

from serving.bodies.hugging_face import Embed, Pipeline, Predict, Similarity
from serving.bodies.openai import Embeddings
from serving.bodies.other_apis import ApiBody
from serving.bodies.reading import Body
from serving.bodies.rerank import Rerank
from serving.errors import InvalidRequest
from serving.front.incoming import Incoming, incoming
from serving.front.models import managed
from serving.front.replies import json_reply
from serving.front.services import services
from serving.named_value import unknown
from serving.request import PATH, Target

# Each route, and its body, which also makes the reply. The attribute `route` can name these.
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
# all routes: the path of some names the model
BODIES = BY_ATTRIBUTE | {
    # the base URL of TEI's clients for one model is /models/NAME
    "/models/<path:name>/rerank": Rerank,
    "/models/<path:name>/embed": Embed,
    "/models/<path:name>/predict": Predict,
    "/models/<path:name>/similarity": Similarity,
    "/pipeline/<path:name>": Pipeline,
}
ROUTE = "route"  # the attribute that names a route for a body of /invocations
OWNER = "triton-multi-model"


def other_api_routes(infer: Callable[[Callable[[Incoming], Body], Target], Response]) -> Blueprint:
    """Return a blueprint with the routes. `infer` answers each request (predictor.py)."""
    routes = Blueprint("other_apis", __name__)

    def add(path: str, body: type[ApiBody]) -> None:
        def answer(name: str = "") -> Response:
            target = Target(PATH, name) if name else incoming().target
            return infer(partial(read_api, body), target)

        answer.__doc__ = body.__doc__
        routes.add_url_rule(path, path, answer, methods=["POST"])

    for path, body in BODIES.items():
        add(path, body)
    routes.add_url_rule("/v1/models", view_func=models, methods=["GET"])
    return routes


def read_api(body: type[ApiBody], source: Incoming) -> ApiBody:
    """Parse a body. Raise InvalidRequest or PayloadTooLarge."""
    return body.of(source.whole())


def read_by_attribute(source: Incoming) -> ApiBody:
    """Parse a body of /invocations as that of the route which the attribute `route` names. Raise
    InvalidRequest and others."""
    route = source.attributes[ROUTE]
    if route not in BY_ATTRIBUTE:
        raise InvalidRequest(f"Custom-Attributes: {unknown('route', route, BY_ATTRIBUTE)}")
    return read_api(BY_ATTRIBUTE[route], source)


@managed
def models() -> Response:
    """List the models that are ready, in the format of OpenAI's API."""
    names = sorted(services().registry.table.look().ready)
    about = {"object": "model", "created": 0, "owned_by": OWNER}
    return json_reply({"object": "list", "data": [{"id": name, **about} for name in names]})
