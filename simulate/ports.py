"""Finds free TCP ports."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from itertools import repeat


class PortPicker:
    """Picks free TCP ports, each only once. It tries the ports in `allowed` one after the other. If
    `allowed` is empty, the kernel chooses.

    A port stays reserved until the picker is closed, even if no server listens on it yet. For each
    port, the picker binds an abstract Unix socket with a name that contains the port. Like ports,
    such names belong to the network namespace, so two programs in one namespace cannot pick the
    same port.
    """

    def __init__(self, allowed: Sequence[int] = ()) -> None:
        self._allowed = allowed
        self._locks: list[socket.socket] = []

    def pick(self) -> int:
        """Reserve and return a port. Raise OSError if none of the allowed ones is free."""
        for wanted in self._allowed or repeat(0):  # for 0, the kernel chooses
            lock = socket.socket(socket.AF_UNIX)
            with socket.socket() as probe, suppress(OSError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("0.0.0.0", wanted))
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
