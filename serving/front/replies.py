"""Creates JSON replies, and replies to failed requests. Errors have the format {"error", "code",
"request_id"}. On routes below /v1 they have OpenAI's format, except at KServe's
/v1/models/NAME:predict."""

import logging
import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import orjson
from flask import Response, current_app
from werkzeug import exceptions
from werkzeug.exceptions import HTTPException
from werkzeug.routing import Rule

from serving.bodies.schemas import JsonObject
from serving.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    ServingError,
    TritonUnavailable,
)
from serving.front.incoming import incoming
from serving.front.services import services

log = logging.getLogger(__name__)
FOR_THE_MANAGER = "examples.answer_example"  # the endpoint that only the model manager may call
# errors on these paths have OpenAI's format
OPENAI = re.compile(r"/v1/(?!models/.*:predict$)")


def public_routes() -> Iterator[tuple[str, Rule]]:
    """Yield the path and the rule of each route that callers may use, except that of Swagger UI's
    files. The path is written as in /openapi.json."""
    for rule in current_app.url_map.iter_rules():
        if not rule.rule.startswith("/docs/") and rule.endpoint != FOR_THE_MANAGER:
            yield shown_path(rule.rule), rule


def shown_path(rule: str) -> str:
    """Convert the path of a rule to the notation of /openapi.json: <name> becomes {name}."""
    return re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule)


def json_reply(value: Any, status: int = HTTPStatus.OK) -> Response:
    """Return the value as a JSON response. Subclasses of tuple, which orjson does not support, are
    written as lists."""
    return Response(orjson.dumps(value, default=list), status=status, mimetype="application/json")


def error_reply(error: Exception) -> Response:
    """Return the reply to a failed request. Log the error if it is a ServingError with the status
    500, or an unexpected exception."""
    if isinstance(error, ServingError):
        if error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error(error.fields()["error"], exc_info=error)
        return _reply(error)
    if isinstance(error, HTTPException):
        return _http_error(error)
    log.error("the request failed", exc_info=error)
    return _reply(ServingError("an internal error; the log has it under this request_id"))


def _reply(error: ServingError) -> Response:
    fields = error.fields()
    if isinstance(error, TritonUnavailable):
        state = services().monitoring.describe_triton()
        fields["error"] += f" [{state}]" if state else ""
    document: JsonObject = {**fields, "request_id": incoming().id}
    if OPENAI.match(incoming().path):
        document = {"error": _openai_error(fields, error.status)}
    response = json_reply(document, error.status)
    response.headers["X-Error-Code"] = error.code
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def _openai_error(fields: Mapping[str, str], status: int) -> dict[str, str | None]:
    is_ours = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    kind = "server_error" if is_ours else "invalid_request_error"
    return {"message": fields["error"], "type": kind, "param": None, "code": fields["code"]}


def _http_error(error: HTTPException) -> Response:
    """Return the reply to an error that Flask or werkzeug raised. If this project has no error like
    it, the reply has the code invalid_request and werkzeug's status."""
    path = incoming().path
    if isinstance(error, exceptions.NotFound):
        routes = ", ".join(sorted({route for route, _ in public_routes()}))
        return _reply(NotFound(f"there is no {path}; the routes are {routes}"))
    if isinstance(error, exceptions.MethodNotAllowed):
        methods = {*(error.valid_methods or ())} - {"HEAD", "OPTIONS"}
        allowed = ", ".join(sorted(methods))
        response = _reply(MethodNotAllowed(f"{path} takes {allowed}, not {incoming().method}"))
        response.headers["Allow"] = allowed
        return response
    if isinstance(error, exceptions.RequestEntityTooLarge):
        limit = current_app.config["MAX_CONTENT_LENGTH"]
        problem = f"the body is larger than {limit} bytes (SERVE_MAX_BODY_MB sets the limit)"
        return _reply(PayloadTooLarge(problem))
    invalid = InvalidRequest(error.description or error.name)
    invalid.status = error.code or HTTPStatus.INTERNAL_SERVER_ERROR
    return _reply(invalid)
