"""A tritonserver for a measurement, on a free port of the loopback address, with no model loaded at first."""

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from build_engines.errors import BuildError
from serving.host import tritonserver
from serving.host.ports import PortPicker

START_SECONDS, END_SECONDS, POLL_SECONDS = 40.0, 20.0, 0.05
SHARED = "shm-region-prefix-name="
CONTROL = ("--model-control-mode=explicit", "--exit-on-error=false", "--allow-metrics=false", "--allow-http=false")


@dataclass(frozen=True)
class Triton:
    """A server that is ready: its process, whose children are its backends' processes, and its client."""

    pid: int
    client: InferenceServerClient

    def backend_megabytes(self) -> float:
        """The memory (PSS) of the processes of python-based backends."""
        children = Path(f"/proc/{self.pid}/task").glob("*/children")
        pids = {pid for file in children for pid in file.read_text().split()}
        return sum(_kilobytes(Path(f"/proc/{pid}/smaps_rollup")) for pid in pids) / 1000


def _kilobytes(file: Path) -> int:
    """The memory (PSS) of a process; 0 when it has ended."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


@contextmanager
def started(repository: Path) -> Iterator[Triton]:
    """Serves the folder; BuildError where there is no tritonserver or it does not start."""
    log = repository / ".log"
    with contextlib.closing(PortPicker()) as picker:
        (port,) = picker.pick(1)
        address = ("--grpc-address=127.0.0.1", f"--grpc-port={port}")
        process = start(repository, tritonserver.backend_directory(), log, [*address, *CONTROL])
        try:
            client = InferenceServerClient(f"127.0.0.1:{port}")
            _wait(client, process, log)
            yield Triton(process.pid, client)
        finally:
            end(process)


def start(
    repository: Path, backends: Path, log: Path, options: Sequence[str], **variables: str
) -> "subprocess.Popen[bytes]":
    """Starts a server in its own process group; it and its backends' processes print into `log`. `end` ends it."""
    prefix = f"build-{secrets.token_hex(8)}"
    try:
        command = [str(tritonserver.binary()), f"--backend-directory={backends}", f"--model-repository={repository}"]
        command += [f"--backend-config={name},{SHARED}{prefix}" for name in tritonserver.python_backends(backends)]
        environment = tritonserver.environment(os.environ) | variables
    except FileNotFoundError as err:
        raise BuildError(str(err)) from err
    with log.open("wb") as output:
        return subprocess.Popen(
            [*command, *options], env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


def _wait(client: InferenceServerClient, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(InferenceServerException):
            if client.is_server_ready():
                return
        time.sleep(POLL_SECONDS)
    last = (log.read_text(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
    raise BuildError(f"tritonserver does not start: {last}")


def end(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, then SIGKILL to the group: a server whose stub cannot start ignores SIGTERM. Triton leaves in shared
    memory what stubs had that have died."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for left in shared_memory(process):
        left.unlink(missing_ok=True)


def shared_memory(process: "subprocess.Popen[bytes]") -> list[Path]:
    """What the server and its backends' processes have there."""
    arguments = cast("list[str]", process.args)
    prefix = next(word.rpartition(SHARED)[2] for word in arguments if SHARED in word)
    return list(Path("/dev/shm").glob(f"{prefix}*"))
