"""What the page to try the models (page/, which nginx serves) needs besides the routes of all callers."""

import mimetypes

from flask import Flask, Response

from serving.front.services import services


def add_page(app: Flask) -> None:
    """Adds its routes."""
    app.add_url_rule("/examples/<name>", view_func=example, methods=["GET"])


def example(name: str) -> Response:
    """The model's example as it would be posted."""
    with services().models.use(name) as served:
        file = served.example_file()
        content, called = (file.read_bytes(), file.name) if file else (served.example(), "example")
    kind = mimetypes.guess_type(called)[0] or "application/octet-stream"
    response = Response(content, mimetype=kind, headers={"X-Content-Type-Options": "nosniff"})
    response.headers.set("Content-Disposition", "attachment", filename=called)  # no page of ours, whatever it holds
    return response
