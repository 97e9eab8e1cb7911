"""HTTP to a server on this machine, at a TCP port or at a Unix socket."""

import http.client
import socket
from collections.abc import Mapping
from pathlib import Path

BODY_LIMIT = 16 * 1024
Address = tuple[str, int] | Path


class LocalConnection(http.client.HTTPConnection):
    """`timeout` in seconds bounds each wait."""

    def __init__(self, address: Address, timeout: float) -> None:
        host, port = ("localhost", None) if isinstance(address, Path) else address
        super().__init__(host, port, timeout=timeout)
        self._unix_socket = address if isinstance(address, Path) else None

    def connect(self) -> None:
        """Raises OSError."""
        if self._unix_socket is None:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._unix_socket))


def get(
    address: Address, path: str, timeout: float, headers: Mapping[str, str] | None = None, limit: int = BODY_LIMIT
) -> tuple[int, bytes]:
    """The status and the beginning of the body, `limit` bytes; `timeout` in seconds bounds each wait. Raises OSError
    where nothing answers, or what answers is no HTTP."""
    connection = LocalConnection(address, timeout)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        response = connection.getresponse()
        return response.status, response.read(limit)
    except http.client.HTTPException as err:
        raise ConnectionError(f"{type(err).__name__}: {err}") from err
    finally:
        connection.close()
