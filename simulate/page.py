"""The container's own page to try its models, on the simulator's port: a browser's requests go to the container as they
are, past the platform's API and its rules."""

import time
from http import HTTPStatus

import urllib3
from flask import Flask, Response, jsonify, request

from simulate.calls import NotListening
from simulate.endpoint import Endpoint

ON = {"SERVE_PAGE": "true"}  # for the container
GETS = ("/", "/page/<path:_>", "/examples/<_>", "/models", "/metrics", "/ping", "/openapi.json", "/docs", "/docs/<_>")
# What the browser needs of a request, and of its reply.
SENT = ("Accept", "Content-Type")
TAKEN = ("Content-Type", "Content-Security-Policy", "Content-Disposition", "Server-Timing", "X-Request-Id")


def add_page(app: Flask, endpoint: Endpoint) -> None:
    """Adds the routes."""

    def hand_on(**_: str) -> Response:
        return _handed_on(endpoint)

    for path in GETS:
        app.add_url_rule(path, endpoint=f"page {path}", view_func=hand_on, methods=["GET"])
    app.add_url_rule("/invocations", endpoint="page /invocations", view_func=hand_on, methods=["POST"])


def _handed_on(endpoint: Endpoint) -> Response:
    headers = {name: value for name in SENT if (value := request.headers.get(name))}
    path = request.full_path.removesuffix("?")
    deadline = time.monotonic() + endpoint.journal.rules["time"].limit
    for instance in endpoint.in_service():
        try:
            reply = instance.hand_on(request.method, path, request.get_data() or None, headers, deadline)
            content = reply.read()
        except (NotListening, urllib3.exceptions.HTTPError, OSError):
            continue
        taken = {name: value for name in TAKEN if (value := reply.headers.get(name))}
        return Response(content, status=reply.status, headers=taken)
    unreachable = jsonify({"error": "no instance is in service", "code": "unreachable"})
    unreachable.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    return unreachable
