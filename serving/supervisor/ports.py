"""Which TCP ports the processes behind nginx listen on: free ones, inside a range when there is one.

A port is reserved from when it is found free until our process ends, by the name of an abstract Unix socket:
such names belong to the network namespace, as ports do, so that two containers on one host's network, which
share nothing else, never pick the same one before their servers have begun to listen.
"""

import errno
import secrets
import socket
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from serving.host.address import LOOPBACK
from serving.settings.parsing import format_port_range
from serving.settings.setting import SettingsError
from serving.settings.table import Settings
from serving.settings.triton_access import TritonAccess

ATTEMPTS = 1000
ANYWHERE = "0.0.0.0"


class NoFreePort(Exception):
    """Fewer ports are free than are needed."""


class PortPicker:
    """Picks free ports of `allowed` (LOW, HIGH), or any when that is empty; never one of `taken`."""

    def __init__(self, allowed: tuple[int, ...] = (), taken: Iterable[int] = ()) -> None:
        self._allowed = allowed
        self._taken = set(taken)
        self._locks: list[socket.socket] = []

    def pick(self, count: int) -> list[int]:
        """So many different ports, reserved; raises NoFreePort that says how many there are."""
        picked = list(islice(self._reserved(), count))
        if len(picked) < count:
            raise NoFreePort(f"{count} free ports are needed, and {len(picked) or 'none'} of them could be had")
        return picked

    def _reserved(self) -> Iterator[int]:
        for port in self._candidates():
            if port not in self._taken and not why_taken(ANYWHERE, port) and self._reserve(port):
                self._taken.add(port)
                yield port

    def _candidates(self) -> Iterator[int]:
        if self._allowed:
            yield from range(self._allowed[0], self._allowed[1] + 1)
        else:
            yield from (_any_port() for _ in range(ATTEMPTS))

    def _reserve(self, port: int) -> bool:
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0triton-multi-model-serve:{port}")
        except OSError:
            lock.close()
            return False
        self._locks.append(lock)
        return True

    def close(self) -> None:
        """Gives up the reservations."""
        while self._locks:
            self._locks.pop().close()


def why_taken(host: str, port: int) -> str:
    """Why no server could listen there, in the system's words; "" when one could."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as err:
            return err.strerror or errno.errorcode.get(err.errno or 0, str(err))
        return ""


def _any_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def port_picker(settings: Settings) -> PortPicker:
    exposed = {settings.grpc_port: settings.allow_grpc, settings.metrics_port: settings.allow_metrics}
    given = [port for port, is_exposed in exposed.items() if is_exposed]
    return PortPicker(settings.safe_port_range, taken=[settings.port, *given])


def picked(settings: Settings, picker: PortPicker) -> TritonAccess:
    """Free ports for what tritonserver listens on; SettingsError when there are too few, or one of ours is taken."""
    check_ports(settings)
    wanted = {"http_port": True, "grpc_port": not settings.allow_grpc, "metrics_port": not settings.allow_metrics}
    names = [name for name, is_wanted in (wanted | {"sagemaker_port": settings.multi_model}).items() if is_wanted]
    try:
        ports: dict[str, Any] = dict(zip(names, picker.pick(len(names)), strict=True))
    except NoFreePort as err:
        allowed = format_port_range(settings.safe_port_range) or "(not set)"
        raise SettingsError([f"SAGEMAKER_SAFE_PORT_RANGE={allowed}: {err}"]) from err
    if settings.allow_grpc:
        ports |= {"grpc_host": settings.host, "grpc_port": settings.grpc_port, "secret": secrets.token_hex(16)}
    if settings.allow_metrics:
        ports |= {"metrics_host": settings.host, "metrics_port": settings.metrics_port}
    return TritonAccess(**ports, shared_memory=f"serve-{secrets.token_hex(8)}")


def check_ports(settings: Settings) -> None:
    """Else nginx would try for seconds while /ping is answered by whoever has the port."""
    listeners = {f"SERVE_HOST={settings.host} and PORT={settings.port}": settings.port}
    if settings.allow_grpc:
        listeners[f"SAGEMAKER_TRITON_GRPC_PORT={settings.grpc_port}"] = settings.grpc_port
    if settings.allow_metrics:
        listeners[f"SAGEMAKER_TRITON_METRICS_PORT={settings.metrics_port}"] = settings.metrics_port
    taken = {name: why for name, port in listeners.items() if (why := why_taken(settings.host, port))}
    if taken:
        raise SettingsError([f"{name}: cannot listen there: {why}" for name, why in taken.items()])
