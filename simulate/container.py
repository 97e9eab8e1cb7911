"""One container from its start to its end: its output, its answers to /ping, calls to it, its stop."""

import contextlib
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import IO

import psutil
import urllib3

from serving.host.processes import used_by
from simulate import runner
from simulate.journal import Journal

PAUSE = 0.1
NEVER_WELL_SECONDS = 5.0  # to stop a container that never answered /ping with 200
REFUSED = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
# What a container logs when it breaks a rule of the platform.
SYMPTOMS = {
    "model-read-only": re.compile(r"Read-only file system|EROFS"),
    "network": re.compile(r"Network is unreachable|Name or service not known|Temporary failure in name resolution"),
}


class Container:
    """Starts at once and makes `launch.folder`; `end` removes it.

    `well`: /ping has answered 200 at least once. `killed`: the simulator killed it as the kernel would. `refused`:
    the number of connections that it did not accept.
    """

    def __init__(self, launch: runner.Launch, journal: Journal) -> None:
        self.journal, self.rules = journal, journal.rules
        self.folder = launch.folder
        (launch.models or self.folder).mkdir(parents=True)
        self.process = runner.Image(launch) if launch.image else runner.Plain(launch)
        self._pool = urllib3.HTTPConnectionPool("127.0.0.1", self.process.port, maxsize=256)
        self._pool.ConnectionCls = self.process.connection
        self.killed = self.well = False
        self.refused = 0
        self.exit_code = self.process.exit_code
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(
        self, method: str, path: str, body: bytes | IO[bytes] | None, headers: Mapping[str, str], deadline: float
    ) -> urllib3.BaseHTTPResponse:
        """Return a reply with its body still unread.

        Raise one of REFUSED if nothing listens, ReadTimeoutError after `deadline` (time.monotonic()), or ProtocolError
        if the connection breaks off.
        """
        timeout = urllib3.Timeout(connect=self.rules["listening"].limit, read=max(0.001, deadline - time.monotonic()))
        how = {"retries": False, "redirect": False, "preload_content": False, "decode_content": False}
        return self._pool.urlopen(method, path, body=body, headers=headers, timeout=timeout, **how)

    def ping(self) -> str:
        """Return what is wrong with the reply, or "". Complain of a reply that breaks another rule."""
        limit = self.rules["ping-time"].limit
        try:
            reply = self.send("GET", "/ping", None, {}, time.monotonic() + limit)
            body = reply.read()
        except REFUSED:
            return "nothing listens on the port"
        except urllib3.exceptions.ReadTimeoutError:
            self.journal.complain("ping-time", f"/ping was not answered within {limit:g} s")
            return "no reply in time"
        except (urllib3.exceptions.HTTPError, OSError) as err:
            return f"the connection broke off: {err}"
        self.well = self.well or reply.status == HTTPStatus.OK
        if reply.status == HTTPStatus.OK and body:
            self.journal.complain_once("ping-body", f"/ping has a body of {len(body)} bytes")
        return "" if reply.status == HTTPStatus.OK else f"{reply.status} {body[:300].decode(errors='replace')}".strip()

    def check_ports(self) -> None:
        """Complain of ports that the platform may use itself."""
        low, high = (int(port) for port in runner.SAFE_PORTS.split("-"))
        allowed, found = {runner.PORT, self.process.port, *range(low, high + 1)}, set()
        first = psutil.Process(self.process.pid)
        for process in (first, *first.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                found |= {each.laddr.port for each in process.net_connections("tcp") if each.status == "LISTEN"}
        if others := found - allowed:
            self.journal.complain("safe-ports", f"the container listens on {sorted(others)}, not {runner.SAFE_PORTS}")

    def check_refusals(self) -> None:
        """Complain of refused connections, unless it was killed. Called later: a dying container refuses too."""
        if self.refused and not self.killed:
            self.journal.complain("listening", f"the container did not accept {self.refused} connections")
            self.refused = 0

    def memory(self) -> int:
        """Return the bytes of memory that its processes use."""
        return used_by(self.process.pid)

    def kill(self) -> None:
        """Kill it as the kernel does when memory is short."""
        self.killed = True
        self.process.kill()

    def end(self) -> None:
        """Stop it by SIGTERM, then SIGKILL, and remove its files.

        The rule about SIGTERM holds only once it has been well: process 1 ignores signals without a handler, and it may
        not have set one yet.
        """
        limit = self.rules["stop"].limit if self.well else min(NEVER_WELL_SECONDS, self.rules["stop"].limit)
        if self.exit_code() is None:
            self.process.terminate()
            deadline = time.monotonic() + limit
            while self.exit_code() is None and time.monotonic() < deadline:
                time.sleep(PAUSE)
            if self.exit_code() is None and self.well:
                self.journal.complain("stop", f"the container still ran {limit:g} s after SIGTERM")
        self.process.kill()
        self._pool.close()
        self._reader.join(timeout=5)
        for name in self.process.changed_files():
            self.journal.complain("model-read-only", f"the container wrote {name} in /opt/ml/model")
        for path, _, _ in os.walk(self.folder):  # or only root could remove a read-only folder
            with contextlib.suppress(FileNotFoundError):
                Path(path).chmod(0o755)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self) -> None:
        for line in self.process.output:
            text = line.decode("utf-8", "replace").rstrip()
            self.journal.say(f"container | {text}")
            for rule, symptom in SYMPTOMS.items():
                if symptom.search(text):
                    self.journal.complain_once(rule, f"the container says: {text[:200]}")


def parts_of(reply: urllib3.BaseHTTPResponse, deadline: float) -> Iterator[bytes]:
    """Yield the body as it arrives; raise ReadTimeoutError if it has not ended at `deadline`."""
    while part := reply.read1(65536):
        yield part
        if time.monotonic() > deadline:
            pool = getattr(reply, "_pool", None)
            raise urllib3.exceptions.ReadTimeoutError(pool, "", "the reply takes too long")  # type: ignore[arg-type]
