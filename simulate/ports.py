"""Finds free TCP ports."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from itertools import repeat


class PortPicker:
    """Picks free TCP ports, each only once: the lowest ones in `allowed`, or any ports if `allowed`
    is empty.

    The name of an abstract Unix socket reserves a port until the picker is closed. Such names
    belong to the network namespace, as ports do. So two programs in one namespace never pick the
    same port, even before their servers listen.
    """

    def __init__(self, allowed: Sequence[int] = ()) -> None:
        self._allowed = allowed
        self._locks: list[socket.socket] = []

    def pick(self) -> int:
        """Reserve and return a port. Raise OSError if none of the allowed ones is free."""
        for allowed in self._allowed or repeat(0):
            lock = socket.socket(socket.AF_UNIX)
            with socket.socket() as probe, suppress(OSError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("0.0.0.0", allowed))
                port = int(probe.getsockname()[1])
                lock.bind(f"\0triton-multi-model-serve:{port}")
                self._locks.append(lock)
                return port
            lock.close()
        raise OSError("no port is free")

    def close(self) -> None:
        """Release the reserved ports."""
        while self._locks:
            self._locks.pop().close()
