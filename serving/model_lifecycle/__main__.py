"""python -m serving.model_lifecycle: the process that loads, unloads and recovers models.

    POST /models, DELETE /models (JSON)  --HTTP on manager.sock--> the policy of multi-model mode
    a call that met a dead process       --datagram on deaths.sock--> recovery

It has no Flask, no codecs and no clients.
"""

import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

from serving.errors import ServingError, TritonTimeout, TritonUnavailable
from serving.model_lifecycle.examples import Examples
from serving.model_lifecycle.manager import AtStart, Manager
from serving.model_lifecycle.on_change import OnChange
from serving.model_lifecycle.on_post import OnPost
from serving.model_lifecycle.recovery import Recovery, Report
from serving.model_status.table import LOADING, UNLOADING, Models
from serving.settings.table import AT_START, ON_CHANGE, ON_POST, Settings
from serving.triton.gateway import TritonGateway

log = logging.getLogger(__name__)
PAUSE, LOOK = 0.2, 1.0  # seconds between two looks at the processes, and at the folders
POLICIES = {AT_START: AtStart, ON_CHANGE: OnChange, ON_POST: OnPost}


class Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, path: str, policy: AtStart) -> None:
        self.policy = policy
        Path(path).unlink(missing_ok=True)
        super().__init__(path, Handler)


class Handler(BaseHTTPRequestHandler):
    """Load a model (POST), unload it (DELETE), and answer the supervisor's health check (GET)."""

    server: Server
    timeout = 10.0

    def do_GET(self) -> None:
        self._reply(200, {})

    def do_POST(self) -> None:
        fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            getattr(self.server.policy, "load" if self.command == "POST" else "unload")(**fields)
        except ServingError as err:
            self._reply(err.status, err.fields())
        except Exception:
            log.exception("%s of %s failed", self.command, fields.get("name"))
            self._reply(500, ServingError("an internal error; the log has it").fields())
        else:
            self._reply(200, {})

    do_DELETE = do_POST

    def _reply(self, status: int, document: dict[str, str]) -> None:
        body = json.dumps(document).encode()
        with suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing, because nginx logs each call."""


class Watch:
    """Watches tritonserver across its restarts, and the processes of its models."""

    def __init__(self, manager: Manager, policy: AtStart) -> None:
        self.manager, self.policy, self.recovery = manager, policy, Recovery(manager)
        self._pid, self._taken_up = manager.models().server, False

    def step(self) -> None:
        """Look once. After each start tritonserver loads its models again; once it answers, update
        the table."""
        pid = self.manager.pid()
        if pid != self._pid:
            if self._pid:
                log.info("tritonserver has ended; the next one loads its models again")
            self.manager.write(partial(_of_server, pid, self._pid))
            self._pid, self._taken_up = pid, False
        if not pid:
            return
        if not self._taken_up:
            self.recovery.forget(pid)
            for entry in self.manager.take_up():
                self.policy.failed(entry, entry.reason)
            models = self.manager.models()
            self._taken_up = not any(map(models.awaits_server, models.entries.values()))
        self.recovery.step()


def _of_server(pid: int, before: int, models: Models) -> Models:
    """Return the table for a new tritonserver: all models are being loaded again."""
    new: dict[str, Any] = {
        "state": LOADING,
        "reason": "tritonserver was started again",
        "answered": models.on_demand,
    }
    entries = {
        name: replace(entry, **new) if before and entry.state != UNLOADING else entry
        for name, entry in models.entries.items()
    }
    return replace(models, server=pid, entries=entries)


def repeat(step: Callable[[], None], seconds: float, failure: str) -> None:
    """Call `step` forever, with a pause of `seconds`. Log an error again only when it changes."""
    logged = ""
    while True:
        text = ""
        try:
            step()
        except (TritonUnavailable, TritonTimeout):
            log.debug("tritonserver does not answer; trying again")
        except Exception as err:
            if (text := f"{failure}: {type(err).__name__}: {err}") != logged:
                log.error(text, exc_info=not isinstance(err, OSError))
        logged = text
        time.sleep(seconds)


def start(*loop: Any) -> None:
    threading.Thread(target=repeat, args=loop, daemon=True).start()


def main() -> None:
    settings = Settings.from_env(os.environ)
    logging.basicConfig(
        format="%(levelname)s: %(message)s", level=settings.log_level.upper(), stream=sys.stdout
    )
    manager = Manager(
        settings, TritonGateway(f"unix:{settings.triton_grpc}", settings.grpc_timeout)
    )
    policy = POLICIES[settings.policy](manager)
    policy.begin()
    watch = Watch(manager, policy)
    start(watch.step, PAUSE, "cannot look at the models' processes")
    Examples(manager, policy).start()
    settings.deaths_socket.unlink(missing_ok=True)
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.bind(str(settings.deaths_socket))

    def hear() -> None:
        watch.recovery.report(Report(**json.loads(heard.recv(64 * 1024))))

    start(hear, 0.0, "cannot read the report of a dead process")
    threading.Thread(
        target=Server(str(settings.manager_socket), policy).serve_forever, daemon=True
    ).start()
    repeat(policy.step, LOOK, "cannot look at the model folders; what is served stays")


if __name__ == "__main__":
    main()
