"""Parses the request that Flask received into a body and a Request."""

from collections.abc import Mapping
from dataclasses import replace

from serving.bodies.lines import JsonLines
from serving.bodies.reading import Body, read_body
from serving.budget import Deadline
from serving.errors import InvalidRequest
from serving.front.incoming import Incoming
from serving.front.other_apis import ROUTE, read_by_attribute
from serving.front.services import services
from serving.headers import EVENT_STREAM, SESSION_ID, streamed_type
from serving.request import PATH, RESERVED, Request, Target


def read_request(source: Incoming, body: Body, route: Target) -> Request:
    """Convert the request that Flask received to a Request. `route` is the model that the path or
    the header Target-Model names. Raise InvalidRequest for the reasons that `_target` lists."""
    app = services()
    accept = source.header("Accept")
    query: Mapping[str, str] = {}
    if source.environ.get("QUERY_STRING"):
        query = source.args.to_dict()
    return Request(
        id=source.id,
        target=_target(source.attributes, query, body, route),
        attributes=source.attributes,
        parameters={key: value for key, value in query.items() if key not in RESERVED},
        session=source.header(SESSION_ID),
        accept=accept,
        stream=streamed_type(accept),
        reply_deadline=Deadline(source.forwarded + app.gateway.timeout),
        stream_deadline=Deadline(source.forwarded + app.gateway.stream_timeout),
        budget=app.budget,
        timings=source.timings,
        traceparent=source.traceparent,
        decoder=app.decoder,
    )


def _target(
    attributes: Mapping[str, str], query: Mapping[str, str], body: Body, route: Target
) -> Target:
    """Return the model and version that the request names. A model in the path overrides all other
    names. Otherwise, raise InvalidRequest if two parts of the request name different models. Also
    raise it if they name different versions, if one part names two models, or if no part names a
    model and the query string has `model`.

    In a body of lines, a line that disagrees is answered with an error line instead
    (bodies/lines.py).
    """
    others = []
    if attributes:
        others.append(Target.within("the header Custom-Attributes", attributes))
    if query:
        others.append(Target.within("the query string", query))
    in_body = body.named
    if route.source == PATH:
        others = [replace(target, name=None) for target in others]
        in_body = replace(in_body, name=None)
    targets = [route, *others]
    if isinstance(body, JsonLines):
        # use the first line's model or version only if no other part of the request names one
        in_body = in_body.without(Target.agreed(targets, route.source))
    target = Target.agreed([*targets, in_body], route.source)
    if target.name is None and "model" in query:
        raise InvalidRequest(
            "the query string names no model; did you mean model_name instead of model?"
        )
    return target


def read_invocation(source: Incoming) -> Body:
    """Parse the body of a request to /invocations. Raise a ServingError or an HTTPException."""
    settings = services().settings
    if ROUTE in source.attributes and settings.doors:
        return read_by_attribute(source)
    stream = ""
    if settings.inference_type == "generate_stream":
        stream = streamed_type(source.header("Accept")) or EVENT_STREAM
    return read_body(
        source.environ.get("CONTENT_TYPE", ""),
        source.whole_body(),
        generates=settings.inference_type != "infer",
        stream=stream,
    )
