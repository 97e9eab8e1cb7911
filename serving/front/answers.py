"""One request to one model that is known: instances, tensors, lines or a stream, as its body and Accept say."""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson
from flask import Response, g, request

from clients.base import ModelClient
from serving.bodies.invocation import (
    JSON_LINES,
    NPY_TYPE,
    RESERVED,
    SHAPES,
    Body,
    FlatBody,
    Instances,
    NpyBody,
    TensorBody,
    as_flat,
)
from serving.bodies.tensors import from_triton, read_npy, reply_type, to_triton, with_parameters, write_json, write_npy
from serving.codecs import encode_image
from serving.errors import BackendDied, InvalidRequest, NotAcceptable, ServingError, UnsupportedMediaType
from serving.front.replies import json_reply
from serving.front.services import services
from serving.front.stream_reply import stream_reply, wanted_format
from serving.inference.batch_transform import Job
from serving.inference.pipeline import Predictions
from serving.inference.served_model import ServedModel
from serving.inference.sessions import SEQUENCE_END, SESSION_ID, Session, open_session, says_end, session_errors
from serving.inference.streaming import Query, lines, only_line
from serving.triton.gateway import HttpReply

log = logging.getLogger(__name__)
UNDECLARED = ("", "application/octet-stream", "application/x-www-form-urlencoded")  # clients' own defaults
PICTURES = ("image/jpeg", "image/png")


def answer(served: ServedModel, version: str, body: Body, attributes: Mapping[str, str]) -> Response:
    """One request to a model that is known by now, whichever route it came by; "" is the latest version."""
    g.model_name = served.model.name
    session = open_session(served.sequencing, request.headers.get(SESSION_ID, ""), _says_end(body, attributes))
    if served.sequencing and isinstance(body, Instances):
        body = replace(body, parameters={k: v for k, v in body.parameters.items() if k != SEQUENCE_END})
    with session_errors(session):
        response = _answer(served, version, body, attributes, session)
    response.headers.update(session.headers() if session else {})
    return response


def _says_end(body: Body, attributes: Mapping[str, str]) -> bool:
    places = [attributes, request.args]
    if isinstance(body, Instances):
        return says_end(*places, body.parameters)
    if isinstance(body, NpyBody) or not body.document:
        return says_end(*places)
    inner = body.document.get("parameters")
    return says_end(*places, body.document, inner if isinstance(inner, dict) else {})


def _answer(
    served: ServedModel, version: str, body: Body, attributes: Mapping[str, str], session: Session | None
) -> Response:
    if isinstance(body, Instances) and body.is_lines:
        return _transform(served, version, body, attributes, session)
    inference_type = services().inference_type
    wanted = wanted_format(request, body, inference_type)
    if wanted or inference_type != "infer":
        body = as_flat(body)
    if form := wanted_format(request, body, inference_type):
        query = _query(served, version, body, attributes, session)
        return stream_reply(services().pipeline, query, form, _reporter(), services().hang_ups, request)
    if isinstance(body, FlatBody):
        return _generate(_query(served, version, body, attributes, session))
    if isinstance(body, TensorBody):
        return _infer_tensors(served, version, with_parameters(body, session.parameters()) if session else body)
    if isinstance(body, NpyBody):
        return _infer_npy(served, version, body, session)
    return _predict(served, version, body, attributes, session)


def _query(
    served: ServedModel, version: str, body: Body, attributes: Mapping[str, str], session: Session | None
) -> Query:
    given: dict[str, Any] = {}
    if isinstance(body, Instances):
        client = served.require_client()
        _check_media_type(client, body.media_type)
        given = _parameters(served, attributes) | dict(body.parameters)
    return Query(served, version, body, given, session, g.request_id)


def _reporter() -> Callable[[Exception], bytes]:
    """For an error within a stream, when Flask has no request any more."""
    found, request_id = services(), g.request_id

    def report(error: Exception) -> bytes:
        if isinstance(error, BackendDied):
            found.health.report_dead_backend(error)
        if isinstance(error, ServingError):
            log.warning("the stream ends with an error: %s", error)
        else:
            log.error("the stream failed", exc_info=error)
            error = ServingError("an internal error; the log has it under this request_id")
        return orjson.dumps({"error": str(error), "code": error.code, "request_id": request_id})

    return report


def _generate(query: Query) -> Response:
    """As Triton's generate: exactly one response."""
    if services().inference_type == "infer":
        raise InvalidRequest(f"the body has none of the shapes {SHAPES}")
    line = only_line(lines(services().pipeline, query, lambda responses: None))
    if line is None:
        raise NotAcceptable(
            f"model '{query.served.model.name}' gave none or several responses, and generate is for exactly one: "
            "ask for them with Accept: text/event-stream or Accept: application/jsonlines"
        )
    g.model_version = line.version
    return Response(line.json, mimetype="application/json")


def _predict(
    served: ServedModel, version: str, body: Instances, attributes: Mapping[str, str], session: Session | None
) -> Response:
    client = served.require_client()
    _check_media_type(client, body.media_type)
    picture = _wanted_picture()
    if picture and len(body.items) != 1:
        raise NotAcceptable(f"Accept: {picture} takes one image at a time, got {len(body.items)} instances")
    given = _parameters(served, attributes) | dict(body.parameters)
    done = services().pipeline.predict(served, version, body.items, given, g.request_id, session)
    g.model_version = done.version
    if picture:
        drawn = client.draw(done.instance, done.predictions[0])
        return Response(encode_image(drawn, picture), mimetype=picture)
    return json_reply(_reply(served, done, body))


def _transform(
    served: ServedModel, version: str, body: Instances, attributes: Mapping[str, str], session: Session | None
) -> Response:
    """JSON lines: a line for each."""
    if session:
        raise InvalidRequest("JSON lines cannot be part of a session: send its requests one by one, as JSON")
    found = services()
    job = Job(
        found.pipeline,
        served,
        None if found.multi_model else served.model.name,
        version,
        _parameters(served, attributes) if served.client else {},
        _reply,
        flat=found.inference_type != "infer",
        request_id=g.request_id,
    )
    written = job.run(body.items[0].raw or b"")
    g.model_version = next(iter(job.versions), version)
    return Response(written, mimetype=JSON_LINES)


def _reply(served: ServedModel, done: Predictions, body: Instances) -> dict[str, Any]:
    if body.sample_shape:
        return {"modelname": served.model.name, "result": done.predictions[0]}
    return {"model_name": served.model.name, "model_version": done.version, "predictions": done.predictions}


def _check_media_type(client: ModelClient, kind: str) -> None:
    """Raises UnsupportedMediaType for a raw body that says it is something the model does not take."""
    allowed = client.codec.media_types
    if kind in UNDECLARED or kind in allowed or kind.partition("/")[0] + "/*" in allowed:
        return
    raise UnsupportedMediaType(
        f"model '{client.model.name}' takes {', '.join(allowed)} or application/json, not '{kind}'"
    )


def _wanted_picture() -> str | None:
    """image/jpeg or image/png when Accept asks for a picture and not for JSON."""
    accepted = request.accept_mimetypes
    best = accepted.best_match(["application/json", *PICTURES], default="application/json")
    return best if best in PICTURES else None


def _parameters(served: ServedModel, attributes: Mapping[str, str]) -> dict[str, Any]:
    """From Custom-Attributes those that the model knows (others are the caller's own), then the query's."""
    known = {parameter.name for parameter in served.parameters}
    ours = {key: value for key, value in attributes.items() if key in known}
    return ours | {key: value for key, value in request.args.items() if key not in {*RESERVED, SEQUENCE_END}}


def _infer_tensors(served: ServedModel, version: str, body: TensorBody) -> Response:
    outgoing = to_triton(body, served.model)
    reply = services().gateway.forward(served.model.name, version, outgoing.body, outgoing.headers())
    reply = from_triton(reply, outgoing.halves)
    g.model_version = _version_in(reply)
    return Response(reply.body, content_type=reply_type(reply))


def _infer_npy(served: ServedModel, version: str, body: NpyBody, session: Session | None) -> Response:
    name, array = read_npy(body.body, served.model)
    flags = session.parameters() if session else {}
    reply = services().gateway.call(served.model.name, version, {name: array}, g.request_id, flags).result()
    g.model_version = reply.version
    if NPY_TYPE not in request.headers.get("Accept", ""):
        return Response(
            write_json(served.model.name, reply.version, reply.outputs, served.model), mimetype="application/json"
        )
    if len(reply.outputs) != 1:
        raise NotAcceptable(f"model '{served.model.name}' has {len(reply.outputs)} outputs; ask for application/json")
    return Response(write_npy(next(iter(reply.outputs.values()))), mimetype=NPY_TYPE)


_VERSION = re.compile(rb'"model_version"\s*:\s*"([^"]*)"')


def _version_in(reply: HttpReply) -> str:
    """Triton writes it at the start of the JSON; parsing a large reply for it would cost more than making it."""
    found = _VERSION.search(reply.body[:2048])
    return found[1].decode() if found else ""
