"""One container from its start to its end: its output, its answers to /ping, its stop."""

import re
import shutil
import threading
import time
from http import HTTPStatus

import urllib3

from serving.host.processes import used_by
from simulate.inplace import make_removable
from simulate.inside import Client, listening_ports
from simulate.journal import Journal
from simulate.runner import SAFE_PORTS, Launch, Runner

PAUSE = 0.1
NEVER_WELL_SECONDS = 5.0  # to stop a container that never answered /ping with 200
REFUSED = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
NOISE = re.compile("^unshare: sigprocmask unblock failed")  # util-linux 2.38 writes it when process 1 was killed
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

    def __init__(self, name: str, runner: Runner, launch: Launch, journal: Journal) -> None:
        self.name, self.journal, self.rules = name, journal, journal.rules
        self.folder = launch.folder
        self.folder.mkdir(parents=True)
        if launch.models:
            launch.models.mkdir()
        self.handle = runner.start(launch)
        self.client = Client(self.handle.port, self.handle.network, self.rules["listening"].limit)
        self.killed = self.well = False
        self.refused = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def exit_code(self) -> int | None:
        return self.handle.exit_code()

    def ping(self) -> str:
        """What is wrong with the reply; "" when it is 200 in time. Complains of a reply that breaks another rule."""
        begun = time.monotonic()
        limit = self.rules["ping-time"].limit
        try:
            reply = self.client.send("GET", "/ping", None, {}, begun + limit)
            body = reply.read()
        except REFUSED:
            return "nothing listens on the port"
        except urllib3.exceptions.ReadTimeoutError:
            self.journal.complain("ping-time", f"{self.name}: /ping was not answered within {limit:g} s")
            return "no reply in time"
        except (urllib3.exceptions.HTTPError, OSError) as err:
            return f"the connection broke off: {err}"
        self.well = self.well or reply.status == HTTPStatus.OK
        if reply.status == HTTPStatus.OK and body:
            self.journal.complain_once("ping-body", f"{self.name}: /ping has a body of {len(body)} bytes")
        return "" if reply.status == HTTPStatus.OK else f"{reply.status} {body[:300].decode(errors='replace')}".strip()

    def check_ports(self) -> None:
        """Complains of ports that the platform may use itself."""
        low, high = (int(port) for port in SAFE_PORTS.split("-"))
        if self.handle.network:
            others = listening_ports(self.handle.network) - {self.handle.port, *range(low, high + 1)}
            if others:
                ports = ", ".join(map(str, sorted(others)))
                self.journal.complain("safe-ports", f"{self.name} listens on {ports}, outside {SAFE_PORTS}")

    def check_refusals(self) -> None:
        """Complains of refused connections, unless it was killed; called later, because a dying container refuses
        connections too."""
        if self.refused and not self.killed:
            self.journal.complain("listening", f"{self.name} did not accept {self.refused} connections")
            self.refused = 0

    def memory(self) -> int:
        """Bytes of memory that its processes use."""
        return used_by(self.handle.pid)

    def kill(self) -> None:
        """Kills it as the kernel does when memory is short."""
        self.killed = True
        self.handle.kill()

    def end(self) -> None:
        """Stops it by SIGTERM, then SIGKILL, and removes its files.

        The rule about SIGTERM holds only once it has been well: process 1 ignores signals without a handler, and it may
        not have set one yet.
        """
        limit = self.rules["stop"].limit if self.well else min(NEVER_WELL_SECONDS, self.rules["stop"].limit)
        if self.exit_code() is None:
            self.handle.terminate()
            if not self._wait(limit) and self.well:
                self.journal.complain("stop", f"{self.name} still ran {limit:g} s after SIGTERM")
        self.handle.kill()
        self.client.close()
        self._reader.join(timeout=5)
        for name in self.handle.changed_files():
            self.journal.complain("model-read-only", f"{self.name} wrote {name} in /opt/ml/model")
        make_removable(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.exit_code() is None and time.monotonic() < deadline:
            time.sleep(PAUSE)
        return self.exit_code() is not None

    def _read(self) -> None:
        for line in self.handle.output:
            text = line.decode("utf-8", "replace").rstrip()
            if NOISE.search(text):
                continue
            self.journal.say(f"{self.name} | {text}")
            for rule, symptom in SYMPTOMS.items():
                if symptom.search(text):
                    self.journal.complain_once(rule, f"{self.name} says: {text[:200]}")
