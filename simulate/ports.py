"""Free TCP ports of this machine, for servers that are started to be tried."""

import socket
from collections.abc import Iterator, Sequence
from itertools import islice, repeat

LOOPBACK = "127.0.0.1"


class PortPicker:
    """Picks free ports, each once: the lowest of `allowed`, or any if that is empty.

    A port is reserved until the picker is closed, by the name of an abstract Unix socket: such names belong to the
    network namespace, as ports do. So two programs on one network never pick the same port before their servers listen.
    """

    def __init__(self, allowed: Sequence[int] = ()) -> None:
        self._allowed = allowed
        self._locks: list[socket.socket] = []

    def pick(self, count: int) -> list[int]:
        """Return `count` different ports, reserved; fewer if no more of the allowed ones are free."""
        return list(islice(self._reserved(), count))

    def close(self) -> None:
        """Give up the reservations."""
        while self._locks:
            self._locks.pop().close()

    def _reserved(self) -> Iterator[int]:
        for port in self._allowed or map(_any_port, repeat(LOOPBACK)):
            if _is_free(port) and self._reserve(port):
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


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True


def _any_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
