"""Load on an HTTP server: wrk in a closed loop, and threads for what wrk cannot do (mixes, an open loop)."""

import http.client
import json
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path

from bench.repository import Unprepared
from bench.workload import Request

TIMEOUT = 30  # seconds of one request
OPEN_CALLERS = 64
SCRIPT = """\
wrk.method = "POST"
for name, value in pairs({headers}) do wrk.headers[name] = value end
local file = io.open({body}, "rb")
wrk.body = file:read("*a")
file:close()
function done(summary, latency)
  local e = summary.errors
  io.write(string.format("\\n@@[%d, %d, %f, %f, %d, %d]\\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), e.status, e.connect + e.read + e.write + e.timeout))
end
"""


class Wrong(Exception):
    """A server answered something else than the right thing, or nothing: no figure of it counts."""


@dataclass(frozen=True)
class Sample:
    """One round: replies, the seconds it took, latencies in milliseconds, what was not answered 200.

    `cpu_ms`: the server's processor time per reply, `parts` the same by program; `light_*`: of the lighter
    model of a mix.
    """

    replies: int
    seconds: float
    p50: float
    p99: float
    errors: int = 0
    cpu_ms: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    light_p50: float = 0.0
    light_p99: float = 0.0

    @property
    def rate(self) -> float:
        """Replies per second."""
        return self.replies / self.seconds


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so much of them do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def sample(latencies: Sequence[float], seconds: float, errors: int, light: Sequence[float] = ()) -> Sample:
    """Of latencies in seconds."""
    p50, p99, light50, light99 = (
        1000 * percentile(values, share) for values in (latencies, light) for share in (0.5, 0.99)
    )
    return Sample(len(latencies), seconds, p50, p99, errors, light_p50=light50, light_p99=light99)


def filled_up(latencies: Sequence[float], interval: float) -> list[float]:
    """As wrk 4.1 corrects what it measures: a wait of more than two usual intervals also stands for the callers
    that would have come meanwhile, each an interval later."""
    added: list[float] = []
    for latency in latencies:
        if latency > 2 * interval > 0:
            added += [latency - n * interval for n in range(1, int(latency / interval))]
    return [*latencies, *added]


def closed_sample(latencies: Sequence[float], callers: int, seconds: float, errors: int = 0) -> Sample:
    """Of a closed loop, with wrk's percentiles."""
    filled = filled_up(latencies, seconds * callers / len(latencies))
    return replace(sample(filled, seconds, errors), replies=len(latencies))


def wrk(port: int, request: Request, callers: int, seconds: int) -> Sample:
    """A closed loop of that one request, each caller on a connection of its own."""
    binary = shutil.which("wrk")
    if not binary:
        raise Unprepared("wrk is missing: apt-get install wrk")
    with tempfile.TemporaryDirectory(prefix="wrk-") as name:
        script, body = Path(name) / "request.lua", Path(name) / "body"
        body.write_bytes(request.body)
        headers = ", ".join(f"[{json.dumps(key)}] = {json.dumps(value)}" for key, value in request.headers.items())
        script.write_text(SCRIPT.format(headers=f"{{{headers}}}", body=json.dumps(str(body))))
        command = [binary, "-t1", f"-c{callers}", f"-d{seconds}s", f"--timeout={TIMEOUT}s", "-s", str(script)]
        done = subprocess.run(
            [*command, f"http://127.0.0.1:{port}{request.path}"], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise Wrong(f"wrk gives up: {done.stderr.strip() or done.stdout.strip()}")
    found = next(line for line in done.stdout.splitlines() if line.startswith("@@"))
    replies, duration, p50, p99, wrong, failed = json.loads(found[2:])
    return Sample(replies, duration / 1e6, p50 / 1000, p99 / 1000, wrong + failed)


class Connection:
    """A caller's connection, made again when the server closes it."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)

    def post(self, request: Request) -> tuple[int, bytes, dict[str, str]]:
        """Status (0: no reply), body, headers by their lower-case names."""
        try:
            self._http.request("POST", request.path, request.body, request.headers)
            reply = self._http.getresponse()
            return reply.status, reply.read(), {key.lower(): value for key, value in reply.getheaders()}
        except (OSError, http.client.HTTPException):
            self._http.close()
            return 0, b"", {}

    def close(self) -> None:
        self._http.close()


@dataclass
class _Noted:
    """What the threads have seen; `light` of the requests marked so."""

    latencies: list[float] = field(default_factory=list)
    light: list[float] = field(default_factory=list)
    errors: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, status: int, seconds: float, is_light: bool) -> None:
        with self.lock:
            self.errors += status != 200
            self.latencies.append(seconds)
            if is_light:
                self.light.append(seconds)


def patient(port: int, request: Request, callers: int, seconds: float) -> Sample:
    """What `wrk` does, for slow replies: those under way at the end are waited for, and count."""
    noted, took = _take_turns(port, [[request]] * callers, "", seconds)
    return closed_sample(noted.latencies, callers, took, noted.errors)


def mixed(port: int, decks: Sequence[Sequence[Request]], light: str, seconds: float) -> Sample:
    """A closed loop of one caller for each deck, who goes through it again and again; requests whose path names
    `light` are counted for themselves too."""
    noted, took = _take_turns(port, decks, light, seconds)
    return sample(noted.latencies, took, noted.errors, light=noted.light)


def _take_turns(port: int, decks: Sequence[Sequence[Request]], light: str, seconds: float) -> tuple[_Noted, float]:
    """What each deck's caller noted, and the seconds until the last reply."""
    noted, deadline = _Noted(), time.monotonic() + seconds

    def call(deck: Sequence[Request]) -> None:
        connection = Connection(port)
        for request in cycle(deck):
            begun = time.monotonic()
            if begun >= deadline:
                break
            status = connection.post(request)[0]
            noted.add(status, time.monotonic() - begun, bool(light) and light in request.path)
        connection.close()

    begun = time.monotonic()
    _together([threading.Thread(target=call, args=(deck,)) for deck in decks])
    return noted, time.monotonic() - begun


def open_loop(port: int, request: Request, rate: float, seconds: float) -> Sample:
    """Requests at random times (Poisson, `rate` per second) whether or not others are answered; a latency counts
    from the moment at which the request was due."""
    noted, lock, due = _Noted(), threading.Lock(), iter(_arrivals(rate, seconds))
    begun = time.monotonic() + 0.05

    def call() -> None:
        connection = Connection(port)
        while True:
            with lock:
                moment = next(due, None)
            if moment is None:
                break
            time.sleep(max(0.0, begun + moment - time.monotonic()))
            status = connection.post(request)[0]
            noted.add(status, time.monotonic() - begun - moment, False)
        connection.close()

    _together([threading.Thread(target=call) for _ in range(OPEN_CALLERS)])
    return sample(noted.latencies, time.monotonic() - begun, noted.errors)


def _arrivals(rate: float, seconds: float) -> Iterator[float]:
    generator, moment = random.Random(1), 0.0
    while (moment := moment + generator.expovariate(rate)) < seconds:
        yield moment


def _together(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
