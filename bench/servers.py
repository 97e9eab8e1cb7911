"""A running peer: starts it, pauses it while another is measured, sends requests, checks answers, ends it."""

import http.client
import math
import os
import random
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import load, processes
from bench.environments import python_of
from bench.load import Connection, Sample, Wrong
from bench.peer_table import Peer
from bench.peers.context import Context
from bench.repository import ROOT, Unprepared
from bench.workload import Request, Workload

START_SECONDS, END_SECONDS, WARM_UP_SECONDS = 120.0, 15.0, 0.3
SETTLE_SECONDS, SETTLE_STEP, SETTLE_SHARE, IDLE_SECONDS = 5.0, 0.1, 0.2, 0.5  # SHARE: of one processor
FREE_PORTS = 3  # MLServer also uses the next two ports
SHARED_MEMORY = Path("/dev/shm")
TOLERANCE = 1e-3  # for a score; servers that batch differently give slightly different ones
LOOSE = 1e-2  # of BF16, whose numbers have 8 significant bits


def free_port() -> int:
    """The first of FREE_PORTS consecutive free ports, below the ports that the kernel gives to connections."""
    while True:
        port = random.randrange(20_000, 32_000)
        if all(map(_is_free, range(port, port + FREE_PORTS))):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class Server:
    """One started peer. `started` is the seconds until its health path answered 200, `answered` until every model had
    replied."""

    def __init__(self, peer: Peer, repository: Path, models: Sequence[str], scratch: Path) -> None:
        self.peer, self.models = peer, tuple(models)
        self.port, self._marker = free_port(), f"BENCH_PEER={secrets.token_hex(8)}"
        folder = scratch / f"{peer.name}-{self.port}"
        folder.mkdir(parents=True)
        self.log = folder / "log"
        context = Context(
            python=python_of(peer.environment),
            repository=repository,
            models=self.models,
            port=self.port,
            scratch=folder,
            engine=peer.engine,
        )
        start = peer.start(context)
        self._leftovers = start.leftovers
        self._begun = time.monotonic()
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                start.command,
                cwd=ROOT,
                env=self._environ(context) | dict(start.variables) | self._mark(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started = self.answered = self._idle = 0.0

    def _environ(self, context: Context) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SERVE_", "SAGEMAKER_", "OMP_"))}
        own = {
            "BENCH_REPOSITORY": str(context.repository),
            "BENCH_MODELS": ",".join(self.models),
            "BENCH_PORT": str(self.port),
            "BENCH_ENGINE": context.engine,
            "BENCH_SCRATCH": str(context.scratch),
            "PYTHONPATH": str(ROOT),
            "HOME": str(context.scratch),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        path = f"{context.python.parent}{os.pathsep}{inherited.get('PATH', os.defpath)}"
        return inherited | own | {"PATH": path}

    def _mark(self) -> dict[str, str]:
        name, _, value = self._marker.partition("=")
        return {name: value}

    def wait(self, works: Sequence[Workload]) -> "Server":
        """Waits until it is ready and has answered each request; Unprepared with the last line of its log if not."""
        deadline = self._begun + START_SECONDS
        while self._get(self.peer.ready) != 200:
            self._check_start(time.monotonic() > deadline)
            time.sleep(0.02)
        self.started = time.monotonic() - self._begun
        for work in works:
            while (request := self.peer.request(work)) and self.ask(request)[0] != 200:
                self._check_start(time.monotonic() > deadline)
                time.sleep(0.1)
        self.answered = time.monotonic() - self._begun
        self._idle = self._busy(IDLE_SECONDS)
        return self

    def _check_start(self, late: bool) -> None:
        if late or self.process.poll() is not None:
            lines = self.log.read_text(errors="replace").strip().splitlines()
            raise Unprepared(f"it does not start: {lines[-1] if lines else 'it says nothing'} ({self.log})")

    def _get(self, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def ask(self, request: Request) -> tuple[int, bytes, dict[str, str]]:
        """One call on a new connection: (status, body, headers)."""
        connection = Connection(self.port)
        try:
            return connection.post(request)
        finally:
            connection.close()

    def pids(self) -> list[int]:
        return processes.family(self.process.pid, self._marker)

    def memory(self) -> int:
        """Bytes of memory of all its processes (PSS)."""
        return processes.pss(self.pids())

    def hold(self) -> None:
        processes.hold(self.pids())

    @contextmanager
    def awake(self) -> Iterator["Server"]:
        """Resumes the server inside the context, and pauses it again afterwards."""
        processes.resume(self.pids())
        try:
            yield self
        finally:
            self.hold()

    def closed(self, work: Workload, callers: int, seconds: int) -> Sample:
        """A round of load.wrk."""
        request = self._request(work)
        return self._round(request, lambda: load.wrk(self.port, request, callers, seconds), unfinished=callers)

    def patient(self, work: Workload, callers: int, seconds: float) -> Sample:
        """A round of load.patient."""
        request = self._request(work)
        return self._round(request, lambda: load.patient(self.port, request, callers, seconds))

    def mixed(self, decks: Sequence[Sequence[Workload]], light: str, seconds: float) -> Sample:
        """A round of load.mixed."""
        asked = [[self._request(work) for work in deck] for deck in decks]
        return self._round(asked[0][0], lambda: load.mixed(self.port, asked, light, seconds))

    def open_loop(self, work: Workload, rate: float, seconds: float) -> Sample:
        """A round of load.open_loop."""
        request = self._request(work)
        return self._round(request, lambda: load.open_loop(self.port, request, rate, seconds))

    def _request(self, work: Workload) -> Request:
        request = self.peer.request(work)
        if request is None:
            raise TypeError(f"{self.peer.name} does not support this request")
        return request

    def _warm_up(self, request: Request) -> None:
        deadline = time.monotonic() + WARM_UP_SECONDS
        while self.ask(request)[0] == 200 and time.monotonic() < deadline:
            pass

    def _round(self, request: Request, drive: Callable[[], Sample], unfinished: int = 0) -> Sample:
        """Warms up with `request`, runs `drive` and adds the processor time. `unfinished` requests cost processor time
        too, but their callers left at the end."""
        self._warm_up(request)
        before = processes.cpu(self.pids())
        found = drive()
        self._settle()
        used = processes.cpu(self.pids())
        each = max(1, found.replies + unfinished)
        spent = {name: seconds - before.get(name, 0.0) for name, seconds in used.items()}
        parts = {name: 1000 * seconds / each for name, seconds in spent.items() if seconds > 0}
        return replace(found, cpu_ms=sum(parts.values()), parts=parts)

    def _settle(self) -> None:
        """Waits until it has finished its queued requests and uses no more processor time than when idle."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline and self._busy(SETTLE_STEP) > self._idle + SETTLE_SHARE:
            pass

    def _busy(self, seconds: float) -> float:
        """The number of processors that it uses now."""
        before = sum(processes.cpu(self.pids()).values())
        time.sleep(seconds)
        return (sum(processes.cpu(self.pids()).values()) - before) / seconds

    def check(self, work: Workload, expected: Sequence[Any], tolerance: float = TOLERANCE) -> None:
        """Raises Wrong unless its answer is that of the same engine in process."""
        status, body, _ = self.ask(self._request(work))
        if status != 200:
            raise Wrong(f"{self.peer.name} answers {status}: {body[:200].decode(errors='replace')}")
        found = [np.frombuffer(body[-4:], np.float32).tolist()] if work.binary else self.peer.predictions(body)
        wanted = self.peer.expected(expected)
        if not alike(found, wanted, tolerance):
            raise Wrong(f"{self.peer.name}, {work.model}: {str(found)[:200]} is not {str(wanted)[:200]}")

    def end(self) -> None:
        processes.end(self.process.pid, self._marker, END_SECONDS)
        self.process.wait()
        for left in SHARED_MEMORY.glob(self._leftovers) if self._leftovers else ():
            left.unlink(missing_ok=True)


def alike(found: Any, expected: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether two JSON values are equal except for the last digits of numbers; found lists may be longer."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(alike(found.get(k), value, tolerance) for k, value in expected.items())
    if isinstance(expected, list):
        pairs = zip(found, expected, strict=False) if isinstance(found, list) else ()
        return isinstance(found, list) and len(found) >= len(expected) and all(alike(*p, tolerance) for p in pairs)
    if isinstance(expected, float):
        return isinstance(found, int | float) and math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
    return bool(found == expected)
