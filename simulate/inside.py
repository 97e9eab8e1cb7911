"""Connections into a container with its own network: a socket belongs to the network in which it was created."""

import ctypes
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import NewConnectionError

LOOPBACK = "127.0.0.1"
OWN_NETWORK = Path("/proc/thread-self/ns/net")
_CLONE_NEWNET = 0x40000000  # linux/sched.h
_CONNECTIONS = 256
_LISTENING = "0A"  # TCP_LISTEN in /proc/net/tcp


@contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Moves this thread into the network of that process; 0 means no move. FileNotFoundError when the process ended."""
    if not pid:
        yield
        return
    own = os.open(OWN_NETWORK, os.O_RDONLY)
    try:
        _enter(Path(f"/proc/{pid}/ns/net"))
        yield
    finally:
        _set_network(own)
        os.close(own)


def _enter(network: Path) -> None:
    descriptor = os.open(network, os.O_RDONLY)
    try:
        _set_network(descriptor)
    finally:
        os.close(descriptor)


def _set_network(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def http_pool(port: int, network: int, connect_seconds: float) -> urllib3.HTTPConnectionPool:
    """A pool for calls to that port; `network` is a process in the port's network, 0 for this machine's network."""

    class Connection(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            try:
                with network_of(network):
                    return super()._new_conn()
            except FileNotFoundError as err:
                raise NewConnectionError(self, f"the container is gone: {err}") from err

    pool = urllib3.HTTPConnectionPool(LOOPBACK, port, maxsize=_CONNECTIONS, timeout=urllib3.Timeout(connect_seconds))
    pool.ConnectionCls = Connection
    return pool


class Client:
    """HTTP to one container; safe to share between threads."""

    def __init__(self, port: int, network: int, connect_seconds: float) -> None:
        self._pool, self._connect = http_pool(port, network, connect_seconds), connect_seconds

    def send(
        self, method: str, path: str, body: bytes | IO[bytes] | None, headers: Mapping[str, str], deadline: float
    ) -> urllib3.BaseHTTPResponse:
        """A reply with its body still unread. Raises urllib3's NewConnectionError and ConnectTimeoutError when nothing
        listens, ReadTimeoutError after `deadline` (time.monotonic()), ProtocolError when the connection breaks off."""
        left = max(0.001, deadline - time.monotonic())
        timeout = urllib3.Timeout(connect=self._connect, read=left)
        return self._pool.urlopen(
            method,
            path,
            body=body,
            headers=headers,
            timeout=timeout,
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )

    def close(self) -> None:
        self._pool.close()


def listening_ports(pid: int) -> set[int]:
    """TCP ports with a listener in the network of that process."""
    return {port for name in ("tcp", "tcp6") for port in _ports(Path(f"/proc/{pid}/net/{name}"))}


def _ports(table: Path) -> Iterator[int]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        _, local, _, state, *_ = line.split()
        if state == _LISTENING:
            yield int(local.rpartition(":")[2], 16)


def read_all(reply: urllib3.BaseHTTPResponse, deadline: float, limit: float) -> bytes | None:
    """The body; None when it is larger than `limit`. Raises ReadTimeoutError, ProtocolError."""
    parts: list[bytes] = []
    size = 0
    for part in parts_of(reply, deadline):
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
    return b"".join(parts)


def parts_of(reply: urllib3.BaseHTTPResponse, deadline: float) -> Iterator[bytes]:
    """The body, part by part as it arrives; ReadTimeoutError when it has not ended at `deadline`."""
    while part := reply.read1(65536):
        yield part
        if time.monotonic() > deadline:
            raise urllib3.exceptions.ReadTimeoutError(_pool_of(reply), None, "the reply takes too long")


def _pool_of(reply: urllib3.BaseHTTPResponse) -> Any:
    return getattr(reply, "_pool", None)
