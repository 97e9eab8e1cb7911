"""Starts and stops a real tritonserver, bounded in time."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from serving import tritonserver

Feed = TypeVar("Feed")
Answer = TypeVar("Answer")

START_TIMEOUT, STOP_TIMEOUT = 40.0, 20.0


@dataclass
class Server:
    """A tritonserver in a process group of its own; `log` is what it and its stubs print."""

    process: subprocess.Popen[bytes]
    log: Path
    http: int
    grpc: int

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def client(self) -> grpcclient.InferenceServerClient:
        return grpcclient.InferenceServerClient(f"127.0.0.1:{self.grpc}")

    def wait_until_started(self) -> bool:
        """False when it ended or did not start in time."""
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and self.process.poll() is None:
            if "Started Metrics Service" in self.text():
                return True
            time.sleep(0.05)
        return False

    def wait_for_exit(self, timeout: float) -> int | None:
        """The exit status; None while it still runs."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to the group: a server whose stub cannot start ignores SIGTERM."""
        self.process.terminate()
        self.wait_for_exit(STOP_TIMEOUT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def start(repository: Path, backends: Path, log: Path, options: Sequence[str] = (), **variables: str) -> Server:
    http, grpc, metrics = free_ports(3)
    command = [
        str(tritonserver.binary()),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        *(f"--{name}-address=127.0.0.1" for name in ("http", "grpc", "metrics")),
        *(f"--{name}-port={port}" for name, port in (("http", http), ("grpc", grpc), ("metrics", metrics))),
        *options,
    ]
    environment = tritonserver.environment(os.environ) | variables
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    return Server(process, log, http, grpc)


@contextlib.contextmanager
def serving(repository: Path, backends: Path, log: Path, *options: str) -> Iterator[Server]:
    """A Triton that has started, models that cannot be loaded or not; stopped at the end."""
    running = start(repository, backends, log, ["--exit-on-error=false", *options], SERVE_INFERENCE_THREADS="1")
    try:
        if not running.wait_until_started():
            raise AssertionError(f"tritonserver did not start:\n{running.text()[-4000:]}")
        yield running
    finally:
        running.stop()


def at_once(ask: Callable[[Feed], Answer], feeds: Sequence[Feed]) -> list[Answer | Exception]:
    """The answers, or Triton's errors, to requests that are sent at the same time."""

    def one(feed: Feed) -> Answer | Exception:
        try:
            return ask(feed)
        except InferenceServerException as err:
            failed: Exception = err
            return failed

    with ThreadPoolExecutor(len(feeds)) as pool:
        return list(pool.map(one, feeds))
