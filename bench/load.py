"""Puts load on an HTTP server with wrk, or on a network in this process: a closed loop with a fixed
number of callers."""

import json
import subprocess
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import onnxruntime

from bench.scenarios import Scenario
from bench.servers import Server
from bench.work import Model, predict

SCRIPT = """\
wrk.method = "POST"
for name, value in pairs({headers}) do wrk.headers[name] = value end
local file = io.open({body}, "rb")
wrk.body = file:read("*a")
file:close()
function done(summary, latency)
  local e = summary.errors
  io.write(string.format("\\n@@[%d, %d, %f, %f, %d]\\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99),
    e.status + e.connect + e.read + e.write + e.timeout))
end
"""


@dataclass(frozen=True)
class Round:
    """The results of one round: answers per second, latencies in milliseconds, the number of
    answers other than 200, and the processor time per answer in milliseconds, keyed by program."""

    rate: float
    p50: float
    p99: float
    errors: int
    processor: dict[str, float] = field(default_factory=dict)


def ask(server: Server, scenario: Scenario) -> bytes:
    """Send one request, and return the body of the answer."""
    path, headers, body = server.request(scenario)
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", body, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        answer: bytes = reply.read()
    return answer


def load(server: Server, scenario: Scenario, seconds: int) -> Round:
    """Run one round against a server."""
    path, headers, body = server.request(scenario)
    with tempfile.TemporaryDirectory(prefix="wrk-") as name:
        script, file = Path(name) / "request.lua", Path(name) / "body"
        file.write_bytes(body)
        table = ", ".join(
            f"[{json.dumps(key)}] = {json.dumps(value)}" for key, value in headers.items()
        )
        script.write_text(SCRIPT.format(headers=f"{{{table}}}", body=json.dumps(str(file))))
        url = f"http://127.0.0.1:{server.port}{path}"
        command = [
            "wrk",
            "-t1",
            f"-c{scenario.callers}",
            f"-d{seconds}s",
            "--timeout=30s",
            "-s",
            str(script),
            url,
        ]
        begun = server.processor_seconds()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        ended = server.processor_seconds()
    line = next(line for line in done.stdout.splitlines() if line.startswith("@@"))
    answers, duration, p50, p99, errors = json.loads(line[2:])
    used = {kind: 1000 * (ended[kind] - begun.get(kind, 0.0)) / max(1, answers) for kind in ended}
    return Round(answers / (duration / 1e6), p50 / 1000, p99 / 1000, errors, used)


def limit(
    model: Model, sessions: list[onnxruntime.InferenceSession], scenario: Scenario, seconds: int
) -> Round:
    """Do the same work in this process, without a server: one thread per session."""
    latencies: list[float] = []
    end = time.monotonic() + seconds

    def call(session: onnxruntime.InferenceSession) -> None:
        while (begun := time.monotonic()) < end:
            predict(model, session, scenario.plain)
            latencies.append(1000 * (time.monotonic() - begun))

    threads = [threading.Thread(target=call, args=(session,)) for session in sessions]
    used, begun = time.process_time(), time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, latencies = time.monotonic() - begun, sorted(latencies)
    processor = {"model": 1000 * (time.process_time() - used) / len(latencies)}
    return Round(
        len(latencies) / took,
        latencies[len(latencies) // 2],
        latencies[len(latencies) * 99 // 100],
        0,
        processor,
    )
