"""Serves the sagemaker-runtime API over HTTP, for boto3.

POST /endpoints/NAME/invocations                  InvokeEndpoint
POST /endpoints/NAME/invocations-response-stream  InvokeEndpointWithResponseStream
POST /endpoints/NAME/async-invocations            InvokeEndpointAsync
"""

import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import urllib3
from flask import Flask, Response, request
from flask.typing import ResponseReturnValue
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from serving.headers import ATTRIBUTES, CLOSED_SESSION_ID, SESSION_ID
from simulate import eventstream, service_model
from simulate.asynchronous import Queue
from simulate.container import parts_of
from simulate.endpoint import VARIANT, Call, Endpoint
from simulate.errors import PlatformError, ValidationError
from simulate.service_model import ASYNC, INVOKE, STREAM, passed_on

TICK = 0.05  # seconds between checks for a stop of the server


class Api:
    """The routes of the API. `queue` receives the asynchronous calls."""

    def __init__(self, endpoint: Endpoint, queue: Queue) -> None:
        self._endpoint = endpoint
        self._queue = queue
        self._journal = endpoint.journal

    def app(self) -> Flask:
        app = Flask(__name__)
        app.add_url_rule("/endpoints/<name>/invocations", view_func=self.invoke, methods=["POST"])
        app.add_url_rule(
            "/endpoints/<name>/invocations-response-stream", view_func=self.stream, methods=["POST"]
        )
        app.add_url_rule(
            "/endpoints/<name>/async-invocations", view_func=self.invoke_async, methods=["POST"]
        )
        app.register_error_handler(PlatformError, self._error_reply)
        app.register_error_handler(404, _unknown_route)
        app.register_error_handler(405, _unknown_route)
        app.after_request(_with_request_id)
        return app

    def invoke(self, name: str) -> Response:
        members, body = self._read(INVOKE, name)
        call = self._call(name, members, body, "time")
        headers, content = self._endpoint.invoke(call, self._journal.limit("reply-body"))
        self._journal.count("calls answered")
        return Response(content, headers=self._reply_headers(INVOKE, headers))

    def stream(self, name: str) -> Response:
        members, body = self._read(STREAM, name)
        call = self._call(name, members, body, "stream-time")
        with ExitStack() as stack:
            reply = stack.enter_context(self._endpoint.exchange(call))
            headers = self._reply_headers(STREAM, reply.headers)
            events = self._events(reply, call)
            response = Response(events, headers=headers, content_type=eventstream.CONTENT_TYPE)
            # keep the container's reply open until the response has been sent
            response.call_on_close(stack.pop_all().close)
        return response

    def invoke_async(self, name: str) -> ResponseReturnValue:
        members, body = self._read(ASYNC, name)
        identifier, output, failure = self._queue.put(name, members, body)
        headers = {
            "X-Amzn-SageMaker-OutputLocation": output,
            "X-Amzn-SageMaker-FailureLocation": failure,
        }
        return {"InferenceId": identifier}, 202, headers

    def _read(self, operation: str, name: str) -> tuple[dict[str, str], bytes]:
        """Read the current request. Return its members and its body. Complain about headers and a
        query string that do not reach the container. Raise ValidationError if the request is
        invalid."""
        body = request.get_data()
        most = self._journal.limit("body")
        if len(body) > most:
            self._journal.complain("body", f"a request of {len(body)} bytes")
            raise ValidationError(
                "1 validation error detected: Value at 'body' failed to satisfy constraint: "
                f"Member must have length less than or equal to {most:.0f}"
            )
        headers = {header.lower(): value for header, value in request.headers}
        for header in service_model.dropped(operation, headers):
            self._journal.complain(
                "headers", f"the caller's header {header} does not reach the container", once=True
            )
        if request.query_string:
            self._journal.complain(
                "query", f"that of {request.path} does not reach the container", once=True
            )
        members = service_model.read(operation, headers)
        self._endpoint.check_created(name)
        self._check_members(name, members, operation)
        return members, body

    def _check_members(self, name: str, members: Mapping[str, str], operation: str) -> None:
        """Raise ValidationError if the endpoint does not accept calls with these members."""
        multi_model = self._endpoint.store is not None
        variant = members.get("TargetVariant", VARIANT)
        if variant != VARIANT:
            raise ValidationError(
                f"Variant {variant} was not found for endpoint {name}; it has {VARIANT}"
            )
        if "TargetModel" in members and not multi_model:
            raise ValidationError(
                f"Endpoint {name} is not a multi-model endpoint and does not support target "
                "model header."
            )
        if multi_model and operation == ASYNC:
            raise ValidationError(
                "InvokeEndpointAsync has no TargetModel, so it cannot call a multi-model endpoint"
            )
        if multi_model and "TargetModel" not in members:
            raise ValidationError(
                f"Endpoint {name} is a multi-model endpoint: a TargetModel is needed"
            )
        for member in ("TargetContainerHostname", "InferenceComponentName"):
            if member in members:
                raise ValidationError(
                    f"Endpoint {name} has one container and no components: leave {member} out"
                )

    def _call(self, name: str, members: Mapping[str, str], body: bytes, rule: str) -> Call:
        """Return a Call whose deadline is the current time plus the limit of `rule`."""
        return Call(
            endpoint=name,
            body=body,
            headers=passed_on(members),
            deadline=time.monotonic() + self._journal.limit(rule),
            rule=rule,
            target=members.get("TargetModel", ""),
            session=members.get("SessionId", ""),
        )

    def _reply_headers(self, operation: str, reply: Mapping[str, str]) -> dict[str, str]:
        """Convert the headers of the container's reply to the headers of the API's reply. Complain
        about invalid Custom-Attributes, which are dropped, and about an invalid Session-Id."""
        attributes = reply.get(ATTRIBUTES, "")
        session = reply.get(SESSION_ID, "")
        is_visible_ascii = attributes.isascii() and attributes.isprintable()
        if len(attributes) > self._journal.limit("attributes") or not is_visible_ascii:
            self._journal.complain(
                "attributes", f"the reply has {len(attributes)} characters of Custom-Attributes"
            )
            attributes = ""
        if session and not service_model.is_new_session(session):
            self._journal.complain("session", f"the container answered {session!r}")
        members = {
            "InvokedProductionVariant": VARIANT,
            "ContentType": reply.get("Content-Type", ""),
            "CustomAttributes": attributes,
            "NewSessionId": session,
            "ClosedSessionId": reply.get(CLOSED_SESSION_ID, ""),
        }
        names = service_model.reply_headers(operation)
        return {
            names[member]: value for member, value in members.items() if value and member in names
        }

    def _events(self, reply: urllib3.BaseHTTPResponse, call: Call) -> Iterator[bytes]:
        """Yield the container's reply as messages of an event stream. If the reply does not end
        properly, the last message is an exception."""
        yield b""  # sends the headers before the first part arrives
        try:
            for part in parts_of(reply, call.deadline):
                yield eventstream.part(part)
            self._journal.count("streams answered")
        except urllib3.exceptions.ReadTimeoutError:
            self._journal.complain("stream-time", "the container was still sending")
            yield eventstream.failure(
                "The model did not finish in time", "ModelInvocationTimeExceeded"
            )
        except (urllib3.exceptions.HTTPError, OSError) as err:
            self._journal.say(f"the container broke off a stream: {err}")
            yield eventstream.failure("The container broke off the stream", "StreamBroken")

    def _error_reply(self, err: PlatformError) -> ResponseReturnValue:
        self._journal.count(f"answers of {err.code}")
        return err.document(), err.status, {"x-amzn-ErrorType": err.code}


def _with_request_id(response: Response) -> Response:
    """Add a request id to the response, as AWS does. SDKs show the id, and boto3 returns it in
    `ResponseMetadata`."""
    response.headers["x-amzn-RequestId"] = str(uuid.uuid4())
    return response


def _unknown_route(_: object) -> ResponseReturnValue:
    text = f"the simulator has no {request.method} {request.path}"
    return {"Message": text}, 404, {"x-amzn-ErrorType": "UnknownOperationException"}


class _Handler(WSGIRequestHandler):
    # otherwise the body of a reply is sent only after the client has acknowledged the headers
    disable_nagle_algorithm = True
    timeout = 600

    def log(self, type: str, message: str, *args: object) -> None:
        """Log nothing, because the journal reports what matters."""


class Server:
    """An HTTP server for the API. It has a thread for each connection."""

    def __init__(self, host: str, port: int, app: Flask) -> None:
        """Start the server. Raise OSError if it cannot listen on the port."""
        # if make_server opened the socket, it would exit the program when the port is in use
        with socket.create_server((host, port), backlog=256) as listener:
            self._server: BaseWSGIServer = make_server(
                host, port, app, threaded=True, request_handler=_Handler, fd=listener.fileno()
            )
        self.port = int(self._server.port)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(TICK,), name="api")
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
