"""gunicorn's gthread worker, whose threads accept connections themselves.

gthread accepts in one thread, hands each connection to a pool, makes a selector there to wait for its first byte, and
hands it back to be closed: half of a worker's time with texts. Behind nginx no connection is slow, and none is kept
alive, so one thread can do all of it.
"""

import os
import socket
import struct
import threading
import time
from select import select
from typing import Any

from gunicorn import util
from gunicorn.workers.gthread import TConn, ThreadWorker

SPARE = 2  # threads that wait for a connection: the next one finds a thread while another is being started
PATIENCE = 0.5  # seconds that a thread waits for a connection before it looks whether it is still needed
TIMEVAL = struct.pack("ll", 0, int(PATIENCE * 1e6))  # SO_RCVTIMEO of socket(7), which accept(2) heeds


class Worker(ThreadWorker):  # type: ignore[misc]
    """Has a thread for every request in work and SPARE more, up to gunicorn's --threads. Connections beyond wait in the
    listening socket; the kernel gives each to the thread, of all workers, that has waited longest."""

    def __init__(self, *arguments: Any, **names: Any) -> None:
        super().__init__(*arguments, **names)
        self._lock = threading.Lock()
        self._threads = self._waiting = 0

    def handle_exit(self, _signal: int, _frame: Any) -> None:
        """SIGTERM: no further connections. The byte that every signal writes to PIPE ends the wait in `run`."""
        self.alive = False

    def run(self) -> None:
        """Until SIGTERM; then until what is in work is answered, or the graceful timeout has passed."""
        (listener,) = self.sockets
        listener.setblocking(True)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEVAL)
        while self.alive and self.is_parent_alive():
            self._start_spare(listener)  # again and again: should all threads have ended, here are new ones
            self.notify()
            if select([self.PIPE[0]], [], [], 1.0)[0]:
                os.read(self.PIPE[0], 4096)
        self.alive = False
        until = time.monotonic() + self.cfg.graceful_timeout
        while self._threads and time.monotonic() < until:
            self.notify()
            time.sleep(0.01)

    def _start_spare(self, listener: Any) -> None:
        with self._lock:
            while self._waiting < SPARE and self._threads < self.cfg.threads:
                try:
                    threading.Thread(target=self._serve, args=(listener,), daemon=True).start()
                except RuntimeError as err:  # the container may have no more processes
                    self.log.warning("connections wait for the threads there are: %s", err)
                    return
                self._threads += 1
                self._waiting += 1

    def _serve(self, listener: Any) -> None:
        try:
            while self.alive:
                connection = self._accept(listener)
                if connection:
                    self._change_waiting(-1)
                    self._start_spare(listener)
                    try:
                        self._answer(connection)
                    finally:
                        self._change_waiting(1)
                elif self._waiting > SPARE:
                    break
        finally:
            with self._lock:
                self._threads -= 1
                self._waiting -= 1

    def _accept(self, listener: Any) -> TConn | None:
        """The next connection; None when nobody came within PATIENCE, or nothing is left to answer on."""
        try:
            connection, address = listener.accept()
        except BlockingIOError:
            return None
        except OSError as err:  # too many open files, or who came has left
            self.log.warning("a connection waits: %s", err)
            time.sleep(PATIENCE)
            return None
        return TConn(self.cfg, connection, address, listener.getsockname())

    def _change_waiting(self, by: int) -> None:
        with self._lock:
            self._waiting += by

    def _answer(self, connection: TConn) -> None:
        connection.data_ready = True
        self.handle(connection)
        message = connection.parser and connection.parser.mesg
        if message and getattr(message.body.reader, "length", None) == 0:
            util.close(connection.sock)
        else:  # a close with unread bytes would take the answer away from nginx, which is still sending
            util.close_graceful(connection.sock)
