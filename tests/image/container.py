"""Runs the image in containers with few rights, as the strictest platforms do, and always without a
network."""

import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.harness import PATIENCE, ROOT, Server, free_port, wait_until
from tests.support.started import ends_with, kill

# a folder outside the repository that keeps layers from one run of the tests to the next
HOME = Path(
    os.environ.get("CONTAINERS_HOME")
    or Path(tempfile.gettempdir()) / "triton-multi-model-containers"
)
# A build without cached layers takes 85 s on two idle processors. Other runs of the tests use the
# same store, and podman cannot start a container while a layer is being written.
BUILD_SECONDS = 1200
RELAY = ROOT / "tests/image/relay.py"
SUDO = () if os.geteuid() == 0 else ("sudo", "--non-interactive", "--preserve-env")
LOCKED_UP = (
    *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--pids-limit", "512", "--network", "none"),
)
STORAGE = """[storage]
driver = "overlay"
graphroot = "{home}/storage"
runroot = "{home}/run"
"""
ENGINE = """[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=20000:20000"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
tmp_dir = "{home}/libpod"
"""


def podman_environment() -> dict[str, str]:
    """Return environment variables with which podman keeps everything in HOME, and write the files
    that they name."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    HOME.joinpath("tmp").mkdir(parents=True, exist_ok=True)
    for name, text in (("storage.conf", STORAGE), ("containers.conf", ENGINE)):
        # only a process with CAP_SYS_RESOURCE could set a limit above its own
        new = HOME / f"{name}.{os.getpid()}"
        new.write_text(text.format(home=HOME, files=min(20000, files) if files > 0 else 20000))
        # atomically, because podman in another run may be reading the file
        new.replace(HOME / name)
    return {
        "CONTAINERS_STORAGE_CONF": str(HOME / "storage.conf"),
        "CONTAINERS_CONF": str(HOME / "containers.conf"),
        "TMPDIR": str(HOME / "tmp"),
    }


def podman(*arguments: str) -> str:
    """Run podman, and return its output. If it fails, raise its error."""
    command = [*SUDO, "podman", *arguments]
    done = subprocess.run(
        command, env=os.environ | podman_environment(), cwd=HOME, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return done.stdout


def build_image(command: str) -> str:
    """Build the image from the working tree with a command of docs/image.md. Return the image's
    name."""
    name = f"localhost/test-{os.getpid()}"
    own = {"ENGINE": "podman", "IMAGE": name, "TAG": "1", "PYTHON": sys.executable}
    environ = os.environ | podman_environment() | own
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run([*SUDO, *shlex.split(command)], cwd=ROOT, env=environ, **pipes)
    assert done.returncode == 0, done.stdout[-5000:]
    return f"{name}:1"


class Container(Server):
    """A Server whose `serve` is PID 1 of a container, with the methods for calling and stopping it
    from tests/support/harness.py. `options` are podman's options, `arguments` the image's
    arguments, and `variables` the container's environment variables."""

    def __init__(
        self,
        folder: Path,
        image: str,
        *options: str,
        memory: str = "2g",
        arguments: Sequence[str] = (),
        **variables: str,
    ) -> None:
        self.name = f"test-{uuid.uuid4().hex[:12]}"
        self.log, self.run_dir = folder / f"{self.name}.log", Path("/tmp/run")
        command = [
            *SUDO,
            "podman",
            "run",
            "--name",
            self.name,
            *LOCKED_UP,
            "--memory",
            memory,
            "--memory-swap",
            memory,
        ]
        for key, value in ({"SERVE_RUN_DIR": str(self.run_dir)} | variables).items():
            command += ["--env", f"{key}={value}"]
        self.relay: subprocess.Popen[bytes] | None = None
        ends_with(self.kill_all)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *options, image, *arguments],
                env=os.environ | podman_environment(),
                cwd=HOME,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def connect(self) -> "Container":
        # each call of podman takes a tenth of a second of processor time
        wait_until(
            lambda: self.log.stat().st_size or self.process.poll() is not None,
            f"{self.name} writes into its log",
            BUILD_SECONDS,
        )
        state = wait_until(
            self.begun,
            lambda: f"{self.name} runs; its log is\n{self.log.read_text()}",
            BUILD_SECONDS,
        )
        command = [*SUDO, sys.executable, str(RELAY), str(self.port), str(state["Pid"])]
        self.relay = subprocess.Popen(command)
        return self

    def begun(self) -> dict[str, Any]:
        """Return the state of a container that is running or has ended, or "" before that. Fail if
        podman does not start it."""
        ended = self.process.poll() is not None
        state = self.state()
        assert state or not ended, (
            f"podman has ended with {self.process.returncode}:\n{self.log.read_text()}"
        )
        return state

    def state(self) -> dict[str, Any]:
        command = [*SUDO, "podman", "inspect", "--format", "{{json .State}}", self.name]
        done = subprocess.run(
            command, env=os.environ | podman_environment(), cwd=HOME, capture_output=True
        )
        if done.returncode:
            return {}
        state: dict[str, Any] = json.loads(done.stdout)
        return state if state["Pid"] or state["Status"] in ("exited", "stopped") else {}

    def wait_ready(self) -> "Container":
        if self.relay is None:
            self.connect()
        super().wait_ready()
        return self

    def run(self, *command: str) -> str:
        return podman("exec", self.name, *command)

    def status(self) -> dict[str, Any]:
        """Return the supervisor's status. The pids in it are those inside the container."""
        state: dict[str, Any] = json.loads(self.run("cat", f"{self.run_dir}/status.json"))
        return state

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        self.run("sh", "-c", f"kill -{int(number)} {pid}")

    def kill_all(self) -> None:
        subprocess.run(
            [*SUDO, "podman", "rm", "--force", "--ignore", "--time", "0", self.name],
            env=os.environ | podman_environment(),
            cwd=HOME,
            capture_output=True,
            check=False,
        )
        for process in (self.process, self.relay):
            if process:
                kill(process)

    def remove(self) -> None:
        podman("rm", "--force", "--time", "0", self.name)
        self.process.wait(PATIENCE)
        if self.relay:
            self.relay.kill()
            self.relay.wait()
