"""Sends HTTP requests to a server on this machine, through a TCP port or a Unix socket."""

import http.client
import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

BODY_LIMIT = 16 * 1024
Address = tuple[str, int] | Path


class LocalConnection(http.client.HTTPConnection):
    """An HTTP connection to a TCP port or a Unix socket. `timeout` (in seconds) applies to each
    socket operation."""

    def __init__(self, address: Address, timeout: float) -> None:
        host, port = ("localhost", None) if isinstance(address, Path) else address
        super().__init__(host, port, timeout=timeout)
        self._unix_socket = address if isinstance(address, Path) else None

    def connect(self) -> None:
        """Connect to the server. Raise OSError."""
        if self._unix_socket is None:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._unix_socket))


def ask(
    address: Address,
    path: str,
    timeout: float,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    most: int | None = BODY_LIMIT,
    body: bytes | None = None,
) -> tuple[int, bytes]:
    """Send a request to the server at `address`. Return the status of the response, and the first
    `most` bytes of its body (None: the whole body). `timeout` (in seconds) applies to each socket
    operation. Raise OSError if the server does not respond or the response is not HTTP."""
    with closing(LocalConnection(address, timeout)) as connection:
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read(most)
        except http.client.HTTPException as err:
            raise ConnectionError(f"{type(err).__name__}: {err}") from err
