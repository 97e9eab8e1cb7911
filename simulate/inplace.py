"""Runs a program of this machine, ./serve, as if it were in its container.

As root it runs in its own namespaces, made with the system's tools (util-linux, iproute2). It is process 1, so signals
work as in a container. /opt/ml/model is mounted read-only, /dev/shm is separate and has half of the memory, the only
network is its own loopback, and all its processes end with it.
Otherwise it runs as a plain process in this machine's network, with a copy of /opt/ml/model that our variables point
to.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO

from serving.host.network import PortPicker
from serving.host.processes import tree
from simulate.runner import MODEL, MODELS, PORT, CannotStart, Handle, Launch, host_variables

SCRIPT = Path(__file__).with_name("namespaces.sh")
UNSHARE = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")  # or the container would outlive a killed simulator


class InPlace:
    """Runs `program serve`; in its own namespaces if `isolated`."""

    def __init__(self, program: Path, isolated: bool) -> None:
        if not (program.is_file() and os.access(program, os.X_OK)):
            raise CannotStart(f"{program} is not an executable file; give one with --serve, or --image IMAGE")
        self.program, self.isolated = program.absolute(), isolated

    def describe(self) -> str:
        if self.isolated:
            return f"{self.program} in its own namespaces: process 1, {MODEL} mounted read-only, no network"
        return f"{self.program} as a plain process: variables point to a copy of {MODEL}, the network is this machine's"

    def start(self, launch: Launch) -> Handle:
        return Namespaced(self.program, launch) if self.isolated else Plain(self.program, launch)


@cache
def can_isolate() -> bool:
    """Whether this machine can make namespaces: it takes root, and programs that Debian's slim image lacks."""
    if os.geteuid() or not all(shutil.which(name) for name in ("unshare", "setpriv", "ip", "mount")):
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = [*UNSHARE, "sh", str(SCRIPT), folder, folder, "true"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


class Namespaced:
    """A program in its own namespaces; it gets only the variables that the platform sets."""

    def __init__(self, program: Path, launch: Launch) -> None:
        self.port, self.models = PORT, MODELS
        environment = {**base_environment(launch.folder), **host_variables(PORT), **launch.environment}
        empty = launch.folder / "empty"
        empty.mkdir()
        mounts = [str((folder or empty).absolute()) for folder in (launch.model, launch.models)]
        command = [*DIE_WITH_PARENT, *UNSHARE, "sh", str(SCRIPT), *mounts, str(program), "serve"]
        self._process = run(command, environment, launch.folder)
        self.output = output_of(self._process)
        self.pid = self.network = self._first_process()

    def _first_process(self) -> int:
        """The id of unshare's only child."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        while self._process.poll() is None:
            if found := children.read_text().split():
                return int(found[0])
        raise CannotStart(f"unshare has ended: {self.output.read().decode(errors='replace').strip()}")

    def exit_code(self) -> int | None:
        return self._process.poll()

    def terminate(self) -> None:
        signal_to(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kills process 1; the kernel then kills all others in its namespace."""
        if self._process.poll() is None:
            signal_to(self.pid, signal.SIGKILL)
        self._process.wait()

    def changed_files(self) -> list[str]:
        return []


class Plain:
    """A program as a plain process, in its own process group."""

    def __init__(self, program: Path, launch: Launch) -> None:
        self._picker = PortPicker()
        self.network, self.port = 0, self._picker.pick(1)[0]
        self.models = str(launch.models or MODELS)
        own = {"SERVE_HOST": "127.0.0.1"}
        self._copy = launch.folder / "model"
        if launch.model:
            shutil.copytree(launch.model, self._copy)
            own["SERVE_MODEL_REPOSITORY"] = str(self._copy)
            make_read_only(self._copy)
        if launch.models:
            own["SERVE_MODEL_REPOSITORY"] = str(launch.models)
        self._files = stamps(self._copy)
        environment = {**base_environment(launch.folder), **own, **host_variables(self.port), **launch.environment}
        self._process = run([str(program), "serve"], environment, launch.folder)
        self.pid, self.output = self._process.pid, output_of(self._process)

    def exit_code(self) -> int | None:
        return self._process.poll()

    def terminate(self) -> None:
        signal_to(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kills the group and the processes that left it, as far as their parents still run."""
        below = list(tree(self.pid))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in below[1:]:
            signal_to(pid, signal.SIGKILL)
        self._process.wait()
        self._picker.close()

    def changed_files(self) -> list[str]:
        now = stamps(self._copy)
        return sorted(name for name in {*now, *self._files} if now.get(name) != self._files.get(name))


def base_environment(folder: Path) -> dict[str, str]:
    """An environment without this process's variables, except the PATH to the programs."""
    temporary = folder / "tmp"
    temporary.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path, "HOME": str(temporary), "TMPDIR": str(temporary), "LANG": "C.UTF-8"}


def run(command: list[str], environment: Mapping[str, str], folder: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def output_of(process: "subprocess.Popen[bytes]") -> IO[bytes]:
    if process.stdout is None:
        raise ValueError("the process was started without a pipe")
    return process.stdout


def signal_to(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def make_read_only(folder: Path) -> None:
    """Makes all files read-only. Root can write anyway; `stamps` shows that."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def make_removable(folder: Path) -> None:
    """Makes folders writable again, or only root could remove them. A load that breaks off may be removing some."""
    for path, _, _ in os.walk(folder):
        with contextlib.suppress(FileNotFoundError):
            Path(path).chmod(0o755)


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """{file: (size, time of its last change in nanoseconds)}."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}
