"""Detects when callers of streams disconnect."""

import select
import socket
import threading
from collections.abc import Callable

ENDED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class HangUps:
    """Detects when callers of streams disconnect, so that their requests can be cancelled. The
    thread that answers such a request cannot detect this while it waits for Triton. So each worker
    has one thread that watches all of these connections.

    Thread-safe. The thread is started at the first use, which must be after gunicorn's fork.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._epoll: select.epoll | None = None

    def watch(self, connection: socket.socket, callback: Callable[[], None]) -> None:
        """Call `callback` once if the other side closes the connection. `forget` must be called
        before this side closes it."""
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(
                    target=self._run, args=(self._epoll,), name="hang-ups", daemon=True
                ).start()
            self._callbacks[connection.fileno()] = callback
            self._epoll.register(connection.fileno(), ENDED | select.EPOLLONESHOT)

    def forget(self, connection: socket.socket | None) -> None:
        """Stop watching a connection, if it is being watched."""
        with self._lock:
            if connection and self._epoll and self._callbacks.pop(connection.fileno(), None):
                self._epoll.unregister(connection.fileno())

    def _run(self, epoll: select.epoll) -> None:
        while True:
            for number, _ in epoll.poll():
                with self._lock:
                    callback = self._callbacks.get(number)
                    if callback and _has_ended(number):
                        callback()


def _has_ended(number: int) -> bool:
    """Return whether the other side has closed the connection with this file descriptor. An event
    does not prove that, because the descriptor may belong to another connection by now."""
    poll = select.poll()
    poll.register(number, select.POLLRDHUP)
    return bool(poll.poll(0))
