"""Load on an HTTP server: wrk for closed loops, threads for what wrk cannot do (mixes, open loops)."""

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

TIMEOUT = 30  # seconds per request
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
    """A server's answer is wrong or missing, so none of its figures count."""


@dataclass(frozen=True)
class Sample:
    """One round: replies, duration in seconds, latencies in milliseconds, replies other than 200.

    `cpu_ms` is the server's processor time per reply, `parts` the same by program. `light_*` are the latencies of the
    lighter model of a mix.
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
    """The value that `share` of the values do not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def sample(latencies: Sequence[float], seconds: float, errors: int, light: Sequence[float] = ()) -> Sample:
    """The sample of these latencies in seconds."""
    p50, p99, light50, light99 = (
        1000 * percentile(values, share) for values in (latencies, light) for share in (0.5, 0.99)
    )
    return Sample(
        replies=len(latencies), seconds=seconds, p50=p50, p99=p99, errors=errors, light_p50=light50, light_p99=light99
    )


def corrected(latencies: Sequence[float], interval: float) -> list[float]:
    """wrk 4.1's correction: a latency of more than two intervals also stands for the requests that would have started
    meanwhile, each one interval later."""
    added: list[float] = []
    for latency in latencies:
        if latency > 2 * interval > 0:
            added += [latency - n * interval for n in range(1, int(latency / interval))]
    return [*latencies, *added]


def closed_sample(latencies: Sequence[float], callers: int, seconds: float, errors: int = 0) -> Sample:
    """The sample of a closed loop, with wrk's percentiles."""
    values = corrected(latencies, seconds * callers / len(latencies))
    return replace(sample(values, seconds, errors), replies=len(latencies))


def wrk(port: int, request: Request, callers: int, seconds: int) -> Sample:
    """A closed loop of one request by wrk; each caller has its own connection."""
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
        raise Wrong(f"wrk failed: {done.stderr.strip() or done.stdout.strip()}")
    found = next(line for line in done.stdout.splitlines() if line.startswith("@@"))
    replies, duration, p50, p99, wrong, failed = json.loads(found[2:])
    return Sample(replies=replies, seconds=duration / 1e6, p50=p50 / 1000, p99=p99 / 1000, errors=wrong + failed)


class Connection:
    """A caller's connection; connects again after the server closed it."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)

    def post(self, request: Request) -> tuple[int, bytes, dict[str, str]]:
        """(status, body, headers with names in lower case); status 0 means no reply."""
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
    """What the threads measured; `light` holds the latencies of the light requests."""

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
    """A closed loop for slow replies: waits for the requests that run at the end, and counts them, unlike wrk."""
    noted, took = _take_turns(port, [[request]] * callers, "", seconds)
    return closed_sample(noted.latencies, callers, took, noted.errors)


def mixed(port: int, decks: Sequence[Sequence[Request]], light: str, seconds: float) -> Sample:
    """A closed loop with one caller per deck of requests, which it repeats. Requests with `light` in their path are
    also counted separately."""
    noted, took = _take_turns(port, decks, light, seconds)
    return sample(noted.latencies, took, noted.errors, light=noted.light)


def _take_turns(port: int, decks: Sequence[Sequence[Request]], light: str, seconds: float) -> tuple[_Noted, float]:
    """What the decks' callers measured, and the seconds until the last reply."""
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
    _run_all([threading.Thread(target=call, args=(deck,)) for deck in decks])
    return noted, time.monotonic() - begun


def open_loop(port: int, request: Request, rate: float, seconds: float) -> Sample:
    """Requests at random times (Poisson, `rate` per second), whether or not earlier ones are answered. A latency counts
    from the time at which the request was due."""
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

    _run_all([threading.Thread(target=call) for _ in range(OPEN_CALLERS)])
    return sample(noted.latencies, time.monotonic() - begun, noted.errors)


def _arrivals(rate: float, seconds: float) -> Iterator[float]:
    generator, moment = random.Random(1), 0.0
    while (moment := moment + generator.expovariate(rate)) < seconds:
        yield moment


def _run_all(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
