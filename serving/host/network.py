"""HTTP to a server on this machine, at a port or at a Unix socket; and free TCP ports."""

import http.client
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from itertools import repeat
from pathlib import Path

Address = tuple[str, int] | Path


class LocalConnection(http.client.HTTPConnection):
    """`timeout` in seconds bounds each wait."""

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
    address: Address, path: str, timeout: float, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Return the status and the body; `timeout` in seconds bounds each wait. Raise OSError if nothing answers, or if
    the answer is not HTTP."""
    with closing(LocalConnection(address, timeout)) as connection:
        try:
            connection.request(method, path, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as err:
            raise ConnectionError(f"{type(err).__name__}: {err}") from err


class PortPicker:
    """Pick free TCP ports, each once: the lowest of `allowed`, or any if that is empty.

    A port is reserved until the picker is closed, by the name of an abstract Unix socket: such names belong to the
    network namespace, as ports do. So two programs on one network never pick the same port before their servers listen.
    """

    def __init__(self, allowed: Sequence[int] = ()) -> None:
        self._allowed = allowed
        self._locks: list[socket.socket] = []

    def pick(self, count: int) -> list[int]:
        """Return `count` different ports, reserved; fewer if no more of the allowed ones are free."""
        ports: list[int] = []
        for port in self._allowed or repeat(0):
            if len(ports) == count:
                break
            lock = socket.socket(socket.AF_UNIX)
            with socket.socket() as probe, suppress(OSError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("0.0.0.0", port))
                lock.bind(f"\0triton-multi-model-serve:{probe.getsockname()[1]}")
                ports.append(probe.getsockname()[1])
                self._locks.append(lock)
                continue
            lock.close()
        return ports

    def close(self) -> None:
        """Give up the reservations."""
        while self._locks:
            self._locks.pop().close()
