"""What the page to try the models (page/, which nginx serves) needs besides the routes of all callers."""

import mimetypes
from importlib.util import find_spec
from pathlib import Path

from flask import Flask, Response, send_from_directory

from serving.errors import NotFound
from serving.front.services import services

SWAGGER_UI = ("swagger-ui.css", "swagger-ui-bundle.js")


def add_page(app: Flask) -> None:
    """Adds its routes."""
    app.add_url_rule("/examples/<name>", view_func=example, methods=["GET"])
    app.add_url_rule("/docs/<name>", view_func=swagger_ui, methods=["GET"])


def example(name: str) -> Response:
    """The model's example as it would be posted."""
    with services().registry.use(name) as served:
        file = served.example_file()
        content, called = (file.read_bytes(), file.name) if file else (served.example(), "example")
    kind = mimetypes.guess_type(called)[0] or "application/octet-stream"
    response = Response(content, mimetype=kind, headers={"X-Content-Type-Options": "nosniff"})
    response.headers.set("Content-Disposition", "attachment", filename=called)  # no page of ours, whatever it holds
    return response


def swagger_ui(name: str) -> Response:
    """A file of Swagger UI, which /docs is made of."""
    package = find_spec("flask_swagger_ui")
    if name not in SWAGGER_UI or not package or not package.origin:
        raise NotFound(f"there is no /docs/{name}; /docs needs the Python package flask-swagger-ui")
    return send_from_directory(Path(package.origin).parent / "dist", name)
