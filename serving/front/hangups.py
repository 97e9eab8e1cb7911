"""Tells when callers leave, so that work for nobody stops.

A thread that waits for Triton doesn't see that its caller's connection has ended; writing to it would tell,
but only with the next response. One thread per worker waits for the ends of all connections at once.
"""

import select
import socket
import threading
from collections.abc import Callable

ENDED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class HangUps:
    """Safe to share between threads; starts its own at first use, that is after gunicorn's fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._epoll: select.epoll | None = None

    def watch(self, connection: socket.socket, callback: Callable[[], None]) -> None:
        """Calls back, once, when the other side ends the connection; until `forget`, which must come before close."""
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(target=self._run, args=(self._epoll,), name="hang-ups", daemon=True).start()
            self._callbacks[connection.fileno()] = callback
            self._epoll.register(connection.fileno(), ENDED | select.EPOLLONESHOT)

    def forget(self, connection: socket.socket) -> None:
        """No call back any more."""
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
    """An event may be late: its number may be that of another connection by now."""
    poll = select.poll()
    poll.register(number, select.POLLRDHUP)
    return bool(poll.poll(0))
