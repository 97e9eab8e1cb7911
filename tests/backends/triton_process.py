"""Starts and stops a real tritonserver, bounded in time."""

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from serving.host import tritonserver
from tests.support.harness import PATIENCE, free_port, wait_until
from tests.support.started import ends_with, kill

END_SECONDS = 20.0
SHARED = "shm-region-prefix-name="
Feed = TypeVar("Feed")
Answer = TypeVar("Answer")


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
        """False when it ended before."""

        def started() -> bool:
            return "Started Metrics Service" in self.text()

        wait_until(lambda: started() or self.process.poll() is not None, "tritonserver starts or ends")
        return started()

    def wait_for_exit(self) -> int:
        """The exit status."""
        return self.process.wait(PATIENCE)

    def stop(self) -> None:
        _end(self.process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, then SIGKILL to the group: a server whose stub cannot start ignores SIGTERM."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for left in shared_memory(process):
        left.unlink(missing_ok=True)


def shared_memory(process: subprocess.Popen[bytes]) -> list[Path]:
    """Return the shared memory of the server and its stubs."""
    arguments = cast("list[str]", process.args)
    prefix = next(word.rpartition(SHARED)[2] for word in arguments if SHARED in word)
    return list(Path("/dev/shm").glob(f"{prefix}*"))


def start(repository: Path, backends: Path, log: Path, options: Sequence[str] = (), **variables: str) -> Server:
    http, grpc, metrics = (free_port() for _ in range(3))
    named = {"http": http, "grpc": grpc, "metrics": metrics}.items()
    addresses = [option for name, port in named for option in (f"--{name}-address=127.0.0.1", f"--{name}-port={port}")]
    prefix = f"build-{secrets.token_hex(8)}"
    command = [str(tritonserver.binary()), f"--backend-directory={backends}", f"--model-repository={repository}"]
    command += [f"--backend-config={name},{SHARED}{prefix}" for name in tritonserver.python_backends(backends)]
    environment = tritonserver.environment(os.environ) | variables
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *addresses, *options],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    ends_with(lambda: kill(process))
    return Server(process, log, http, grpc)


@contextlib.contextmanager
def serving(repository: Path, backends: Path, log: Path, *options: str, **variables: str) -> Iterator[Server]:
    """A Triton that has started, models that cannot be loaded or not; stopped at the end."""
    variables = {"SERVE_INFERENCE_THREADS": "1"} | variables
    running = start(repository, backends, log, ["--exit-on-error=false", *options], **variables)
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
