"""Starts a container, reads its output, checks its health, sends it requests, and stops it.

The container is either the `serve` of a checkout, which runs as a plain process, or an image, which
runs with docker or podman.

A plain process uses this machine's network, and a copy of the model, to which the variable
SERVE_MODEL_REPOSITORY points. An image runs with a read-only file system. If the simulator runs as
root, that container has no network, and the simulator opens connections from within the container's
network namespace. Otherwise the container's port is published on 127.0.0.1.
"""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import IO

import psutil
import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import NewConnectionError

from serving.host.processes import memory_used_by
from simulate.errors import TOO_LATE, InternalFailure, ModelError
from simulate.ports import PortPicker
from simulate.rules import Journal

# PORT, SAFE_PORTS, MODEL and MODELS are the same as on the platform
PORT = 8080
SAFE_PORTS = "23000-23999"
MODEL = "/opt/ml/model"
MODELS = "/opt/ml/models"
START_SECONDS = 60.0  # time limit for an engine to start or remove a container
CLONE_NEWNET = 0x40000000  # linux/sched.h
# An image gets fewer privileges here than on the platform, so that what works here works there too.
RIGHTS = (
    "--read-only --tmpfs /tmp:rw,mode=1777 --cap-drop ALL --security-opt no-new-privileges "
    "--pids-limit 4096 --no-healthcheck"
)
PAUSE = 0.1
# time limit for stopping a container that never answered /ping with 200
NEVER_HEALTHY_SECONDS = 5.0
REFUSED = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
# log lines that show which of the platform's rules a container breaks
SYMPTOMS = {
    "model-read-only": re.compile(r"Read-only file system|EROFS"),
    "network": re.compile(
        r"Network is unreachable|Name or service not known|Temporary failure in name resolution"
    ),
}


class CannotStart(Exception):
    """Raised if the container or the API cannot be started, for example because the program, the
    image or the engine is missing, or because the port is in use. The message says what to do."""


@dataclass(frozen=True)
class Launch:
    """Says how to start a container. `folder` is a new folder for its files. `memory` is the
    instance's memory in bytes. An image gets `model` at /opt/ml/model and `models` at
    /opt/ml/models, both read-only. If `image` is "", `program` runs as a plain process, with a copy
    of `model` or with `models` itself."""

    folder: Path
    environment: Mapping[str, str]
    memory: int
    program: Path
    engine: str = ""
    image: str = ""
    model: Path | None = None
    models: Path | None = None


class Process:
    """A started container. `pid` is the id of its first process, and `models` is the path at which
    it sees Launch.models. `connection` is the class of the connections that reach it."""

    connection: type[HTTPConnection] = HTTPConnection
    models = MODELS
    pid = 0

    def __init__(
        self, command: list[str], environment: Mapping[str, str] | None, folder: Path
    ) -> None:
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.output: IO[bytes] = self._process.stdout or BytesIO()

    def exit_code(self) -> int | None:
        return self._process.poll()

    def changed_files(self) -> list[str]:
        """Return the files that the container changed in /opt/ml/model: none, because an image gets
        this folder read-only."""
        return []


class Plain(Process):
    """A program that runs as a plain process, in its own process group. Creating an object starts
    the program, or raises CannotStart if it is not an executable file."""

    def __init__(self, launch: Launch) -> None:
        if not os.access(launch.program, os.X_OK):
            raise CannotStart(
                f"{launch.program} is not an executable file; give one with --serve, or "
                "--image IMAGE"
            )
        self._picker = PortPicker()
        self.port = self._picker.pick()
        self.models = str(launch.models or MODELS)
        self._copy = launch.folder / "model"
        temporary = launch.folder / "tmp"
        repository = launch.models
        if launch.model:  # a copy shows which files the program changes
            repository = shutil.copytree(launch.model, self._copy)
            for path in [self._copy, *self._copy.rglob("*")]:
                path.chmod(0o555 if path.is_dir() else 0o444)
        self._stamps = stamps(self._copy)
        temporary.mkdir()
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(temporary),
            "TMPDIR": str(temporary),
            "LANG": "C.UTF-8",
            "SERVE_HOST": "127.0.0.1",
            **platform_variables(self.port),
        }
        if repository:
            environment["SERVE_MODEL_REPOSITORY"] = str(repository)
        environment |= launch.environment
        super().__init__([str(launch.program.absolute()), "serve"], environment, launch.folder)
        self.pid = self._process.pid

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process group. Also kill descendants that have left the group. (Those whose
        parents have ended cannot be found.)"""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._picker.close()

    def changed_files(self) -> list[str]:
        """Return the files that the program has changed in its copy of /opt/ml/model. The copy is
        read-only, but that does not keep root from writing."""
        changed = stamps(self._copy).items() ^ self._stamps.items()
        return sorted({str(path.relative_to(self._copy)) for path, _ in changed})


class Image(Process):
    """A container that runs an image. The engine's process lives as long as the container, and
    passes on the container's output and exit code. Creating an object starts the container and
    waits for its first process, or raises CannotStart if there is no such image or the container
    does not start."""

    def __init__(self, launch: Launch) -> None:
        self._engine = launch.engine
        self._name = f"sim-{os.getpid()}-{launch.folder.name}"
        done = self._run("image", "inspect", launch.image)
        if done.returncode:
            raise CannotStart(
                f"{launch.engine} has no image {launch.image}: {done.stderr.strip()[-300:]}"
            )
        self._picker = PortPicker()
        # root can enter the container's network namespace, so it publishes no port
        published = 0 if os.geteuid() == 0 else self._picker.pick()
        self.port = published or PORT
        super().__init__(image_command(launch, self._name, published), None, launch.folder)
        deadline = time.monotonic() + START_SECONDS
        while not self.pid:
            if self.exit_code() is not None or time.monotonic() > deadline:
                self.kill()
                output = self.output.read().decode(errors="replace")
                raise CannotStart(f"{self._engine}: {output.strip()[-500:]}")
            done = self._run("inspect", "--format", "{{.State.Pid}}", self._name)
            self.pid = int(done.stdout.strip() or 0)
        if not published:
            self.connection = connection_in(self.pid)

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self._engine, *arguments], capture_output=True, text=True, check=False
        )

    def terminate(self) -> None:
        self._run("kill", "--signal", "TERM", self._name)

    def kill(self) -> None:
        self._run("rm", "--force", self._name)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=START_SECONDS)
        self._process.kill()
        self._picker.close()


def image_command(launch: Launch, name: str, port: int) -> list[str]:
    """Return the engine's command line. If `port` is 0, the container has no network."""
    network = ["-p", f"127.0.0.1:{port}:{PORT}"] if port else ["--network", "none"]
    memory = ["--memory", str(launch.memory), "--memory-swap", str(launch.memory)]
    mounts = [(launch.model, MODEL), (launch.models, MODELS)]
    command = [launch.engine, "run", "--rm", "--name", name, *RIGHTS.split(), *network, *memory]
    command += ["--shm-size", str(launch.memory // 2)]
    for path, folder in mounts:
        if path:
            command += ["-v", f"{path.absolute()}:{folder}:ro"]
    environment = {**platform_variables(PORT), **launch.environment}
    for key, value in environment.items():
        command += ["-e", f"{key}={value}"]
    return [*command, launch.image, "serve"]


def find_engine() -> str:
    """Return "podman" if it is installed, or else "docker". Raise CannotStart if neither is."""
    for name in ("podman", "docker"):
        if shutil.which(name):
            return name
    raise CannotStart("neither podman nor docker is installed: run ./serve without --image")


def platform_variables(port: int) -> dict[str, str]:
    """Return the environment variables that the platform sets for every container. The container
    must listen on `port`."""
    return {"SAGEMAKER_BIND_TO_PORT": str(port), "SAGEMAKER_SAFE_PORT_RANGE": SAFE_PORTS}


def connection_in(pid: int) -> type[HTTPConnection]:
    """Return a class of connections that connect from within the network namespace of the process
    `pid`. They create their sockets there, because a socket belongs to the namespace in which it
    was created."""

    def enter(network: int) -> None:
        if ctypes.CDLL(None, use_errno=True).setns(network, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")

    class Connection(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            try:
                with (
                    Path("/proc/thread-self/ns/net").open() as own,
                    Path(f"/proc/{pid}/ns/net").open() as theirs,
                ):
                    enter(theirs.fileno())
                    try:
                        return super()._new_conn()
                    finally:
                        enter(own.fileno())
            except FileNotFoundError as err:
                raise NewConnectionError(self, f"the container is gone: {err}") from err

    return Connection


def stamps(folder: Path) -> dict[Path, int]:
    """Return the modification time of each file in nanoseconds."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


class Container:
    """A running container. The constructor creates `launch.folder` and starts the container; `end`
    stops it and removes the folder.

    `was_healthy` is true if /ping has returned 200 at least once. `killed` is true if the simulator
    has killed the container because it used too much memory. `refused` is the number of connections
    that the container has not accepted since the last complaint about them.
    """

    def __init__(self, launch: Launch, journal: Journal) -> None:
        self.journal = journal
        self.folder = launch.folder
        (launch.models or self.folder).mkdir(parents=True)  # `models` is in `folder`
        self.process = Image(launch) if launch.image else Plain(launch)
        self._pool = urllib3.HTTPConnectionPool("127.0.0.1", self.process.port, maxsize=256)
        self._pool.ConnectionCls = self.process.connection
        self.was_healthy = False
        self.killed = False
        self.refused = 0
        self.exit_code = self.process.exit_code
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(
        self,
        method: str,
        path: str,
        body: bytes | IO[bytes] | None,
        headers: Mapping[str, str],
        deadline: float,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request and return the reply, whose body has not been read yet.

        Raise one of REFUSED if the container does not accept the connection, ReadTimeoutError if
        the reply does not begin before `deadline` (time.monotonic()), or ProtocolError if the
        connection breaks.
        """
        seconds = max(0.001, deadline - time.monotonic())  # urllib3 refuses 0 and less
        timeout = urllib3.Timeout(connect=self.journal.limit("listening"), read=seconds)
        return self._pool.urlopen(
            method,
            path,
            body,
            headers,
            timeout=timeout,
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )

    def ping(self) -> str:
        """Send a request to /ping. Return what is wrong with the reply, or "" if the container is
        healthy. Complain if the reply breaks another rule."""
        limit = self.journal.limit("ping-time")
        try:
            reply = self.send("GET", "/ping", None, {}, time.monotonic() + limit)
            body = reply.read()
        except REFUSED:
            return "nothing listens on the port"
        except urllib3.exceptions.ReadTimeoutError:
            self.journal.complain("ping-time", f"/ping was not answered within {limit:g} s")
            return "no reply in time"
        except (urllib3.exceptions.HTTPError, OSError) as err:
            return f"the connection broke off: {err}"
        if reply.status != HTTPStatus.OK:
            return f"{reply.status} {body[:300].decode(errors='replace')}".strip()
        self.was_healthy = True
        if body:
            self.journal.complain("ping-body", f"/ping has a body of {len(body)} bytes", once=True)
        return ""

    def check_ports(self) -> None:
        """Complain about open ports of the container, other than its own and SAFE_PORTS."""
        low, high = (int(port) for port in SAFE_PORTS.split("-"))
        allowed = {PORT, self.process.port, *range(low, high + 1)}
        ports: set[int] = set()
        processes: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):  # the container may have ended
            first = psutil.Process(self.process.pid)
            processes = [first, *first.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.Error):
                connections = process.net_connections("tcp")
                ports |= {each.laddr.port for each in connections if each.status == "LISTEN"}
        others = ports - allowed
        if others:
            self.journal.complain(
                "safe-ports", f"the container listens on {sorted(others)}, not {SAFE_PORTS}"
            )

    def check_refusals(self) -> None:
        """Complain about refused connections, unless the container was killed. Do not call this
        immediately after a refusal: a container that is dying refuses connections before its end
        can be seen."""
        if self.refused and not self.killed:
            self.journal.complain(
                "listening", f"the container did not accept {self.refused} connections"
            )
            self.refused = 0

    def memory(self) -> int:
        """Return how many bytes of memory the container's processes use."""
        return memory_used_by(self.process.pid)

    def kill(self) -> None:
        """Kill the container as the kernel does when memory runs out."""
        self.killed = True
        self.process.kill()

    def end(self) -> None:
        """Stop the container with SIGTERM, then with SIGKILL, and remove its files. Do not complain
        about a container that was never healthy and does not stop in time: it may not have a
        handler for SIGTERM yet, and process 1 ignores signals that it does not handle."""
        limit = self.journal.limit("stop")
        if not self.was_healthy:
            limit = min(NEVER_HEALTHY_SECONDS, limit)
        if self.exit_code() is None:
            self.process.terminate()
            deadline = time.monotonic() + limit
            while self.exit_code() is None and time.monotonic() < deadline:
                time.sleep(PAUSE)
            if self.exit_code() is None and self.was_healthy:
                self.journal.complain("stop", f"the container still ran {limit:g} s after SIGTERM")
        self.process.kill()
        self._pool.close()
        self._reader.join(timeout=5)
        for name in self.process.changed_files():
            self.journal.complain("model-read-only", f"the container wrote {name} in /opt/ml/model")
        # make the folders writable, because otherwise only root could remove them
        for path, _, _ in os.walk(self.folder):
            with contextlib.suppress(FileNotFoundError):
                Path(path).chmod(0o755)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self) -> None:
        """Print the container's output, and complain about SYMPTOMS in it."""
        for line in self.process.output:
            text = line.decode("utf-8", "replace").rstrip()
            self.journal.say(f"container | {text}")
            for rule, symptom in SYMPTOMS.items():
                if symptom.search(text):
                    self.journal.complain(rule, f"the container says: {text[:200]}", once=True)


@contextlib.contextmanager
def translated_errors(journal: Journal, rule: str, endpoint: str) -> Iterator[None]:
    """Translate urllib3's errors and OSErrors in the `with` block: ReadTimeoutError to ModelError,
    and any other to InternalFailure. Record in the journal what the container did wrong. If it does
    not answer in time, it breaks `rule`."""
    try:
        yield
    except urllib3.exceptions.ReadTimeoutError as err:
        journal.complain(rule, "the container did not answer in time")
        raise ModelError(endpoint, 0, TOO_LATE) from err
    except (urllib3.exceptions.HTTPError, OSError) as err:
        journal.count("connections broken off by the container")
        journal.say(f"the container broke off a connection: {err}")
        raise InternalFailure("The container broke off the connection") from err


def parts_of(reply: urllib3.BaseHTTPResponse, deadline: float) -> Iterator[bytes]:
    """Yield the parts of the body as they arrive. Raise ReadTimeoutError after a part that arrives
    later than `deadline`, or if no part arrives within the read timeout that `Container.send`
    set."""
    while part := reply.read1(65536):
        yield part
        if time.monotonic() > deadline:
            reason = "the reply takes too long"
            raise urllib3.exceptions.ReadTimeoutError(None, "", reason)  # type: ignore[arg-type]
