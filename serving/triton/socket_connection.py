"""HTTP over a Unix socket."""

import http.client
import socket
from pathlib import Path


class SocketConnection(http.client.HTTPConnection):
    """To the server that listens on `path`; `timeout` in seconds bounds each step."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
