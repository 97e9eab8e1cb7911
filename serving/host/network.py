"""This machine's addresses and free TCP ports, and HTTP to a server on it, at a port or at a Unix socket."""

import http.client
import socket
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path

LOOPBACK = "127.0.0.1"
ANYWHERE = "0.0.0.0"
BODY_LIMIT = 16 * 1024
Address = tuple[str, int] | Path


def reached(host: str) -> str:
    """What to call to reach a server that listens on `host`."""
    return {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)


def bracketed(host: str) -> str:
    """An address as it stands before a port: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


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


class PortPicker:
    """Picks free ports, each once: the lowest of `allowed`, or any when that is empty.

    A port is reserved until the picker is closed, by the name of an abstract Unix socket: such names belong to the
    network namespace, as ports do. So two programs on one network never pick the same port before their servers listen.
    """

    def __init__(self, allowed: Sequence[int] = ()) -> None:
        self._allowed = allowed
        self._locks: list[socket.socket] = []

    def pick(self, count: int) -> list[int]:
        """So many different ports, reserved; fewer where no more of the allowed ones are free."""
        return list(islice(self._reserved(), count))

    def close(self) -> None:
        """Gives up the reservations."""
        while self._locks:
            self._locks.pop().close()

    def _reserved(self) -> Iterator[int]:
        for port in self._allowed or map(_any_port, repeat(LOOPBACK)):
            if not why_taken(ANYWHERE, port) and self._reserve(port):
                yield port

    def _reserve(self, port: int) -> bool:
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0triton-multi-model-serve:{port}")
        except OSError:
            lock.close()
            return False
        self._locks.append(lock)
        return True


def why_taken(host: str, port: int) -> str:
    """Why no server could listen there, in the system's words; "" when one could."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as err:
            return str(err.strerror or err)
        return ""


def _any_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
