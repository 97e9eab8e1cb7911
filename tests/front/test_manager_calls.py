"""Tests how the workers call the model manager."""

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer

import pytest

from serving.front.manager_calls import ask_manager
from serving.settings.settings import Settings

pytestmark = pytest.mark.unit


class Echo(BaseHTTPRequestHandler):
    """Replies with the length of the request's body according to its headers."""

    def do_GET(self) -> None:
        reply = b'{"length": "%s"}' % str(self.headers["Content-Length"]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_request(self, *_: object) -> None:
        pass


def test_send_no_body_that_the_manager_does_not_read(tmp_path: Path) -> None:
    """Closing a socket that has unread bytes resets the connection."""
    settings = replace(Settings(), run_dir=tmp_path)
    with UnixStreamServer(str(settings.manager_socket), Echo) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert ask_manager(settings, "GET", "/known", 5.0) == {"length": "None"}
        thread.join()
