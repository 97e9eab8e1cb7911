"""Free TCP ports of this machine.

A port is reserved from when it is found free until the picker is closed, by the name of an abstract Unix socket: such
names belong to the network namespace, as ports do. So two programs on one network, which share nothing else, never pick
the same port before their servers have begun to listen.
"""

import socket
from collections.abc import Iterator, Sequence
from itertools import islice, repeat

from serving.host.address import LOOPBACK

ANYWHERE = "0.0.0.0"


class PortPicker:
    """Picks free ports, each once: the lowest of `allowed`, or any when that is empty."""

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
