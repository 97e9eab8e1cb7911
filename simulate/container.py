"""One container from its start to its end: what it says, how it answers /ping, how it is stopped."""

import re
import shutil
import threading
import time
from http import HTTPStatus

import urllib3

from serving.host.process_memory import used_by
from simulate.inplace import make_removable
from simulate.inside import Client, listening_ports
from simulate.journal import Journal
from simulate.runner import SAFE_PORTS, Launch, Runner

PAUSE = 0.1
YOUNG_SECONDS = 5.0
REFUSED = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
NOISE = re.compile("^unshare: sigprocmask unblock failed")  # util-linux 2.38, of a process 1 that was killed
# What a container writes into its log when it meets a wall of the platform.
SYMPTOMS = {
    "model-read-only": re.compile(r"Read-only file system|EROFS"),
    "network": re.compile(r"Network is unreachable|Name or service not known|Temporary failure in name resolution"),
}


class Container:
    """Starts at once; `launch.folder` is made, and removed by `end`.

    `well` says whether /ping has ever answered 200, `killed` whether we have killed it, as the kernel does; `refused`
    counts connections that it did not take.
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
        """What is wrong with the answer, "" when it is 200 in time. An answer that breaks another rule is told."""
        begun = time.monotonic()
        limit = self.rules["ping-time"].limit
        try:
            reply = self.client.send("GET", "/ping", None, {}, begun + limit)
            body = reply.read()
        except REFUSED:
            return "nobody listens on the port"
        except urllib3.exceptions.ReadTimeoutError:
            self.journal.complain("ping-time", f"{self.name}: /ping was not answered within {limit:g} s")
            return "no answer in time"
        except (urllib3.exceptions.HTTPError, OSError) as err:
            return f"the connection broke off: {err}"
        self.well = self.well or reply.status == HTTPStatus.OK
        if reply.status == HTTPStatus.OK and body:
            self.journal.complain_once("ping-body", f"{self.name}: /ping has a body of {len(body)} bytes")
        return "" if reply.status == HTTPStatus.OK else f"{reply.status} {body[:300].decode(errors='replace')}".strip()

    def check_ports(self) -> None:
        """Tells of ports that the platform may use itself."""
        low, high = (int(port) for port in SAFE_PORTS.split("-"))
        if self.handle.network:
            others = listening_ports(self.handle.network) - {self.handle.port, *range(low, high + 1)}
            if others:
                ports = ", ".join(map(str, sorted(others)))
                self.journal.complain("safe-ports", f"{self.name} listens on {ports}, outside {SAFE_PORTS}")

    def check_refusals(self) -> None:
        """Told a moment later, for one that dies does not take connections either."""
        if self.refused:
            self.journal.complain("listening", f"{self.name} did not take {self.refused} connections")
            self.refused = 0

    def memory(self) -> int:
        """Bytes that its processes take."""
        return used_by(self.handle.pid)

    def kill(self) -> None:
        """As the kernel does it when memory is short."""
        self.killed = True
        self.handle.kill()

    def end(self) -> None:
        """SIGTERM, then SIGKILL; nothing of it is left. One that has never been well may have been too young to hear
        the first: process 1 gets no signal that it does not handle yet."""
        limit = self.rules["stop"].limit if self.well else min(YOUNG_SECONDS, self.rules["stop"].limit)
        if self.exit_code() is None:
            self.handle.terminate()
            if not self._wait(limit) and self.well:
                self.journal.complain("stop", f"{self.name} still ran {limit:g} s after SIGTERM")
        self.handle.kill()
        self.client.close()
        self._reader.join(timeout=5)
        for name in self.handle.changed_files():
            self.journal.complain("model-read-only", f"{self.name} has written {name} in /opt/ml/model")
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
