"""Free TCP ports of this machine, inside a range when there is one.

A port is reserved from when it is found free until the picker is closed, by the name of an abstract Unix socket: such
names belong to the network namespace, as ports do. So two containers on one host's network, which share nothing else,
never pick the same port before their servers have begun to listen.
"""

import socket
from collections.abc import Iterable, Iterator
from itertools import islice

from serving.host.address import LOOPBACK

ATTEMPTS = 1000
ANYWHERE = "0.0.0.0"


class NoFreePort(Exception):
    """Fewer ports are free than are needed."""


class PortPicker:
    """Picks free ports of `allowed` (LOW, HIGH), or any when that is empty; never one of `taken`."""

    def __init__(self, allowed: tuple[int, ...] = (), taken: Iterable[int] = ()) -> None:
        self._allowed, self._taken = allowed, set(taken)
        self._locks: list[socket.socket] = []

    def pick(self, count: int) -> list[int]:
        """So many different ports, reserved; raises NoFreePort that says how many there are."""
        picked = list(islice(self._reserved(), count))
        if len(picked) < count:
            raise NoFreePort(f"{count} free ports are needed, and {len(picked) or 'none'} of them could be had")
        return picked

    def close(self) -> None:
        """Gives up the reservations."""
        while self._locks:
            self._locks.pop().close()

    def _reserved(self) -> Iterator[int]:
        within = range(self._allowed[0], self._allowed[1] + 1) if self._allowed else ()
        for port in within or (_any_port() for _ in range(ATTEMPTS)):
            if port not in self._taken and not why_taken(ANYWHERE, port) and self._reserve(port):
                self._taken.add(port)
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


def _any_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
