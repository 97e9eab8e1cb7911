"""HTTP to a server on this machine, at a port or at a Unix socket."""

import http.client
import socket
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
        """Raise OSError."""
        if self._unix_socket is None:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._unix_socket))


def get(address: Address, path: str, timeout: float) -> tuple[int, bytes]:
    """Return the status and the first BODY_LIMIT bytes of the body; `timeout` in seconds bounds each wait. Raise
    OSError if nothing answers, or if the answer is not HTTP."""
    connection = LocalConnection(address, timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(BODY_LIMIT)
    except http.client.HTTPException as err:
        raise ConnectionError(f"{type(err).__name__}: {err}") from err
    finally:
        connection.close()
