"""Detects when callers of streams disconnect, and regularly runs a check for each stream."""

import logging
import select
import socket
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)
CHECK_SECONDS = 1.0
ENDED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class HangUps:
    """Detects when callers of streams disconnect, so that their requests can be cancelled, and
    calls a function for each stream at least every CHECK_SECONDS. The thread that answers a request
    cannot do this while it waits for Triton. So each worker has one thread for all streams.

    Thread-safe. The thread is started at the first use, which must be after gunicorn's fork.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # the functions `on_close` and `check` of each connection, keyed by its descriptor
        self._watched: dict[int, tuple[Callable[[], None], Callable[[], None]]] = {}
        self._epoll: select.epoll | None = None

    def watch(
        self,
        connection: socket.socket,
        on_close: Callable[[], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `on_close` once if the other side closes the connection, and `check` regularly. Both
        are called in the one thread for all streams, with the lock held. So they must be quick,
        and call neither `watch` nor `forget`. Their errors are logged. `forget` must be called
        before this side closes the connection."""
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(
                    target=self._run, args=(self._epoll,), name="hang-ups", daemon=True
                ).start()
            self._watched[connection.fileno()] = on_close, check
            self._epoll.register(connection.fileno(), ENDED | select.EPOLLONESHOT)

    def forget(self, connection: socket.socket | None) -> None:
        """Stop watching a connection, if it is being watched."""
        if connection is None:
            return
        with self._lock:
            was_watched = self._watched.pop(connection.fileno(), None) is not None
            if self._epoll and was_watched:
                self._epoll.unregister(connection.fileno())

    def _run(self, epoll: select.epoll) -> None:
        while True:
            events = epoll.poll(CHECK_SECONDS)
            with self._lock:
                for descriptor, _ in events:
                    if descriptor in self._watched and _has_ended(descriptor):
                        on_close, _ = self._watched[descriptor]
                        _try(on_close)
                for _, check in self._watched.values():
                    _try(check)


def _try(function: Callable[[], None]) -> None:
    """Call the function. Log any error, because the thread must go on for all other streams."""
    try:
        function()
    except Exception:
        log.exception("a stream cannot be watched")


def _has_ended(descriptor: int) -> bool:
    """Return whether the other side has closed the connection with this file descriptor. An event
    does not prove that, because the descriptor may belong to another connection by now."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))
