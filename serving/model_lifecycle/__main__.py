"""Runs the model manager: `python -m serving.model_lifecycle`. This process loads and unloads
models, and reloads those whose processes have died.

The workers send it requests, over HTTP on manager.sock: POST /models and DELETE /models in
multi-model mode, POST /wanted and GET /known in on-demand mode. If a call finds a dead process, its
worker sends a datagram to deaths.sock.

This process imports neither Flask nor codecs nor clients.
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
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

from serving.errors import ServingError, TritonTimeout, TritonUnavailable
from serving.model_lifecycle.examples import Examples
from serving.model_lifecycle.manager import Manager
from serving.model_lifecycle.on_change import OnChange
from serving.model_lifecycle.on_demand import OnDemand
from serving.model_lifecycle.on_post import OnPost
from serving.model_lifecycle.policy import AtStart, Policy
from serving.model_lifecycle.recovery import Recovery, Report
from serving.model_status.states import LOADING
from serving.settings.settings import AT_START, ON_CHANGE, ON_DEMAND, ON_POST, Settings
from serving.triton.gateway import TritonGateway

log = logging.getLogger(__name__)
WATCH_PAUSE = 0.2  # seconds between calls of Watch.step
POLICY_PAUSE = 1.0  # seconds between calls of Policy.step
POLICIES: dict[str, type[Policy]] = {
    AT_START.name: AtStart,
    ON_CHANGE.name: OnChange,
    ON_POST.name: OnPost,
    ON_DEMAND.name: OnDemand,
}


class Server(ThreadingMixIn, UnixStreamServer):
    """Listens on the Unix socket at `path`, and handles each request in a thread of its own."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, path: str, policy: Policy) -> None:
        self.policy = policy
        Path(path).unlink(missing_ok=True)  # an earlier manager may have left it behind
        super().__init__(path, Handler)


class Handler(BaseHTTPRequestHandler):
    """Handles requests to load a model (POST), to unload one (DELETE), and to list those that could
    be loaded (GET). The supervisor's health check is a GET too."""

    server: Server
    timeout = 10.0  # seconds that each read or write of the socket may take

    def do_GET(self) -> None:
        known = self.server.policy.known() if self.path == "/known" else {}
        self._reply(200, known)

    def do_POST(self) -> None:
        policy = self.server.policy
        self._change(policy.want if self.path == "/wanted" else policy.load)

    def do_DELETE(self) -> None:
        self._change(self.server.policy.unload)

    def _change(self, change: Callable[..., None]) -> None:
        """Call `change` with the fields of the body. Reply with {} or, if `change` raises a
        ServingError, with that error. Log any other error, and reply that the log has it."""
        fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            change(**fields)
        except ServingError as err:
            self._reply(err.status, err.facts())
        except Exception:
            log.exception("%s of %s failed", self.command, fields.get("name"))
            self._reply(500, ServingError("an internal error; the log has it").facts())
        else:
            self._reply(200, {})

    def _reply(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        with suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing, because nginx logs the callers' requests."""


class Watch:
    """Watches tritonserver and the processes of its models, and notices when tritonserver is
    restarted."""

    def __init__(self, manager: Manager, policy: Policy) -> None:
        self.manager = manager
        self.policy = policy
        self.recovery = Recovery(manager)
        # whether the table shows, for every model, how its load at this tritonserver's start ended
        self._has_recorded_loads = False

    def step(self) -> None:
        """Update the table once. If tritonserver has ended, mark its models as loading. When a new
        tritonserver has loaded them, record which of them are ready, and let `policy` handle those
        that failed. While tritonserver runs, let `recovery` check the models' processes."""
        pid = self.manager.pid()
        recorded_pid = self.manager.models().server
        if pid != recorded_pid:
            if recorded_pid:
                log.info("tritonserver has ended; the next one loads its models again")
            self.manager.record_server(pid)
            self._has_recorded_loads = False
        if not pid:
            return
        if not self._has_recorded_loads:
            self.recovery.watch(pid)
            for entry, reason in self.manager.record_loads():
                self.policy.handle_failure(entry, reason)
            entries = self.manager.models().entries.values()
            self._has_recorded_loads = all(entry.state != LOADING for entry in entries)
        self.recovery.step()


def repeat(step: Callable[[], None], seconds: float, failure: str) -> None:
    """Call `step` forever, with a pause of `seconds` between the calls. Log an error, after the
    text `failure`, unless the previous call raised the same one. If tritonserver does not answer,
    log only a debug message."""
    last_error = ""
    while True:
        error = ""
        try:
            step()
        except (TritonUnavailable, TritonTimeout):
            log.debug("tritonserver does not answer; trying again")
        except Exception as err:
            error = f"{failure}: {type(err).__name__}: {err}"
            if error != last_error:
                log.error(error, exc_info=not isinstance(err, OSError))
        last_error = error
        time.sleep(seconds)


def repeat_in_thread(step: Callable[[], None], seconds: float, failure: str) -> None:
    """Call `repeat` with these arguments in a new thread."""
    threading.Thread(target=repeat, args=(step, seconds, failure), daemon=True).start()


def main() -> None:
    settings = Settings.from_env(os.environ)
    logging.basicConfig(
        format="%(levelname)s: %(message)s", level=settings.log_level.upper(), stream=sys.stdout
    )
    gateway = TritonGateway(f"unix:{settings.triton_grpc}", settings.grpc_timeout)
    manager = Manager(settings, gateway)
    policy = POLICIES[settings.policy.name](manager)
    watch = Watch(manager, policy)
    repeat_in_thread(watch.step, WATCH_PAUSE, "cannot look at the models' processes")
    Examples(manager, policy).start()
    settings.deaths_socket.unlink(missing_ok=True)
    deaths = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    deaths.bind(str(settings.deaths_socket))

    def receive_death() -> None:
        fields = json.loads(deaths.recv(64 * 1024))
        watch.recovery.report(Report(**fields))

    repeat_in_thread(receive_death, 0.0, "cannot read the report of a dead process")
    server = Server(str(settings.manager_socket), policy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    repeat(policy.step, POLICY_PAUSE, "cannot update the models; what is served stays")


if __name__ == "__main__":
    main()
