"""Changes gunicorn's worker with threads so that its main loop never waits for nginx.

Worker overrides the methods `handle` and `finish_request` of gunicorn's ThreadWorker, which are not
documented. If they change, every test in tests/endpoint fails.
"""

from concurrent.futures import Future
from typing import Any

from gunicorn.util import close_graceful
from gunicorn.workers.gthread import ThreadWorker


class Worker(ThreadWorker):  # type: ignore[misc]
    """Answers one request per connection, because nginx keeps no connection to gunicorn open."""

    def handle(self, conn: Any) -> bool:
        """Answer the request and close the connection, both in a thread of the pool.

        gunicorn itself (27.0) closes the connection in the main loop, where it waits for up to 2 s
        until nginx has read the reply. If several callers read slowly, the worker then accepts no
        connections, and gunicorn kills it because it seems to hang.
        """
        # Wait for the request, however long nginx takes to send it. gunicorn would give up after
        # 5 s.
        conn.data_ready = True
        try:
            super().handle(conn)
        finally:
            close_graceful(conn.sock)
        return False

    def finish_request(self, conn: Any, done: Future[bool]) -> None:
        """Count the connection as closed. Called in the main loop."""
        self.nr_conns -= 1
