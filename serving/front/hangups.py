"""Notices when callers of streams leave, so that nothing more is computed for them.

A thread that waits for Triton does not see that its caller's connection has ended; a write would fail, but there is
none before the next response. One thread per worker waits for the ends of all connections.
"""

import select
import socket
import threading
from collections.abc import Callable

ENDED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class HangUps:
    """Safe to share between threads; starts its own thread at the first use, which is after gunicorn's fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._epoll: select.epoll | None = None

    def watch(self, connection: socket.socket, callback: Callable[[], None]) -> None:
        """Calls back once when the other side ends the connection, until `forget`, which must come before its close."""
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(target=self._run, args=(self._epoll,), name="hang-ups", daemon=True).start()
            self._callbacks[connection.fileno()] = callback
            self._epoll.register(connection.fileno(), ENDED | select.EPOLLONESHOT)

    def forget(self, connection: socket.socket) -> None:
        """From now on there is no call back."""
        with self._lock:
            if self._epoll and self._callbacks.pop(connection.fileno(), None):
                self._epoll.unregister(connection.fileno())

    def _run(self, epoll: select.epoll) -> None:
        while True:
            for number, _ in epoll.poll():
                with self._lock:
                    callback = self._callbacks.get(number)
                    if callback and _has_ended(number):
                        callback()


def _has_ended(number: int) -> bool:
    """An event may be late: another connection may have its number by now."""
    poll = select.poll()
    poll.register(number, select.POLLRDHUP)
    return bool(poll.poll(0))
