"""Puts load on an HTTP server, or on networks in this process. In a closed loop (wrk), each caller
sends its next request after the answer to the previous one. In an open loop, requests are sent at
given times, whether or not earlier ones have been answered."""

import http.client
import itertools
import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bench.scenarios import ROOT, Request, Scenario
from bench.servers import Server
from bench.work import KINDS, predict

SCRIPT = """\
local requests, sent = {}, 0
for _, path in ipairs({%s}) do
  local file = io.open(path, "rb")
  requests[#requests + 1] = file:read("*a")
  file:close()
end
function request()
  sent = sent + 1
  return requests[(sent - 1) %% #requests + 1]
end
function done(summary, latency)
  local e = summary.errors
  io.write(string.format("\\n@@[%%d, %%d, %%f, %%f, %%d]\\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99),
    e.status + e.connect + e.read + e.write + e.timeout))
end
"""
PROCESSORS = 2
TIMEOUT = 30  # seconds that a caller waits for an answer
PAUSE = 0.2  # seconds between checks of whether a server is idle
MOST_PAUSES = 50
IDLE = 0.25  # an idle server uses less than this share of a processor (LitServe uses 0.13)
Sessions = Mapping[str, onnxruntime.InferenceSession]  # keyed by model


@dataclass(frozen=True)
class Round:
    """Holds the results of one round: answers per second, latencies in milliseconds, the number of
    answers with a status other than 200, and the processor time per answer in milliseconds, keyed
    by program. `refused` counts the 503 replies in an open loop, which are not errors."""

    rate: float
    p50: float
    p99: float
    errors: int
    processor: dict[str, float] = field(default_factory=dict)
    refused: int = 0


def send(server: Server, request: Request) -> bytes:
    """Send one request, and return the body of the answer."""
    path, headers, body = server.http_request(request)
    url = f"http://127.0.0.1:{server.port}{path}"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as reply:
        answer: bytes = reply.read()
    return answer


def run_round(server: Server, scenario: Scenario, seconds: int, rate: float = 0.0) -> Round:
    """Run one round against a server, as an open loop at `rate` or, if `rate` is 0, as a closed
    loop. Return its results."""
    begun = server.processor_seconds()
    if rate:
        done = open_loop(server, scenario, seconds, rate)
    else:
        done = closed_loop(server, scenario, seconds)
    ended = server.processor_seconds()
    settle(server)
    answers = max(1.0, done.rate * seconds)
    used = {program: total - begun.get(program, 0.0) for program, total in ended.items()}
    return replace(done, processor={name: 1000 * spent / answers for name, spent in used.items()})


def settle(server: Server) -> None:
    """Wait until the server is idle. It still works on requests that wrk abandoned, which would
    slow down its next round."""
    used = sum(server.processor_seconds().values())
    for _ in range(MOST_PAUSES):
        time.sleep(PAUSE)
        before = used
        used = sum(server.processor_seconds().values())
        if used - before < IDLE * PAUSE:
            break


def closed_loop(server: Server, scenario: Scenario, seconds: int) -> Round:
    """Run wrk, whose callers each send their next request after the answer to the previous one.
    Return the results."""
    with tempfile.TemporaryDirectory(prefix="wrk-") as name:
        paths = []
        for index, request in enumerate(scenario.requests):
            file = Path(name) / str(index)
            file.write_bytes(message(server, request))
            paths.append(json.dumps(str(file)))  # a literal in Lua, too
        script = Path(name) / "requests.lua"
        script.write_text(SCRIPT % ", ".join(paths))
        options = f"-t1 -c{scenario.callers} -d{seconds}s --timeout={TIMEOUT}s"
        command = ["wrk", *options.split(), "-s", str(script), f"http://127.0.0.1:{server.port}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("@@"))
    # wrk reports times in microseconds
    answers, duration, p50, p99, errors = json.loads(line[2:])
    return Round(answers / (duration / 1e6), p50 / 1000, p99 / 1000, errors)


def message(server: Server, request: Request) -> bytes:
    """Return the request as an HTTP message."""
    path, headers, body = server.http_request(request)
    lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def open_loop(server: Server, scenario: Scenario, seconds: int, rate: float) -> Round:
    """Send requests at random times (a Poisson process), whether or not earlier ones have been
    answered, as long as a caller is free. Measure each latency from the time when the request was
    due. Return the results."""
    count = max(1, round(rate * seconds))
    gaps = np.random.default_rng(0).exponential(1 / rate, count)
    dues = (time.monotonic() + np.cumsum(gaps)).tolist()
    requests = [server.http_request(request) for request in scenario.requests]
    calls = zip(dues, itertools.cycle(requests))  # shared by the callers: each takes the next one
    answers: list[tuple[int, float]] = []  # status and latency

    def call(_: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT)
        for due, (path, headers, body) in calls:
            time.sleep(max(0.0, due - time.monotonic()))
            status = 0
            try:
                connection.request("POST", path, body, headers)
                reply = connection.getresponse()
                reply.read()
                status = reply.status
            except OSError:
                connection.close()
            answers.append((status, 1000 * (time.monotonic() - due)))
        connection.close()

    with ThreadPoolExecutor(scenario.callers) as pool:
        list(pool.map(call, range(scenario.callers)))
    took = time.monotonic() - dues[0]
    latencies = [latency for status, latency in answers if status == HTTPStatus.OK]
    refused = sum(status == HTTPStatus.SERVICE_UNAVAILABLE for status, _ in answers)
    errors = count - len(latencies) - refused
    return _results(latencies, took, errors, refused)


class Networks:
    """Does the work of a scenario in this process, without a server. It has no models for scenarios
    with tensors."""

    def __init__(self, scenario: Scenario) -> None:
        names = set() if scenario.is_tensor else scenario.models()
        self.models = {name: KINDS[name](ROOT / "model_repository" / name) for name in names}
        threads = 1 if scenario.callers > 1 else PROCESSORS
        # the sessions of each caller thread
        self._sessions = [
            {name: model.session(threads) for name, model in self.models.items()}
            for _ in range(PROCESSORS // threads)
        ]

    def predict(self, request: Request, sessions: Sessions | None = None) -> Any:
        """Return the prediction for a request."""
        session = (sessions or self._sessions[0])[request.model]
        return predict(self.models[request.model], session, request.plain)

    def run_round(self, scenario: Scenario, seconds: int) -> Round:
        """Run one round, with one caller thread per processor, or with one caller whose runs use
        both processors. Return the results."""
        latencies: list[float] = []
        end = time.monotonic() + seconds
        requests = itertools.cycle(scenario.requests)

        def call(sessions: Sessions) -> None:
            while (begun := time.monotonic()) < end:
                self.predict(next(requests), sessions)
                latencies.append(1000 * (time.monotonic() - begun))

        used_before = time.process_time()
        begun = time.monotonic()
        with ThreadPoolExecutor() as pool:
            list(pool.map(call, self._sessions))
        done = _results(latencies, time.monotonic() - begun)
        used = time.process_time() - used_before
        return replace(done, processor={"model": 1000 * used / len(latencies)})


def _results(latencies: list[float], took: float, errors: int = 0, refused: int = 0) -> Round:
    """Return the results of a round of `took` seconds with these latencies."""
    p50, p99 = np.percentile(latencies or [0.0], (50, 99)).tolist()
    return Round(len(latencies) / took, p50, p99, errors, refused=refused)
