"""Runs an image with podman or docker, with as few rights as possible.

As root, the container's only network is its own loopback, and the simulator connects inside it. Otherwise the container
has the engine's network, because an engine can publish a port only with a network; its port is published on 127.0.0.1.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import IO

from serving.host.network import PortPicker
from simulate.inplace import output_of
from simulate.runner import MODEL, MODELS, PORT, CannotStart, Handle, Launch, host_variables

START_SECONDS = 60.0
# Fewer rights than on the platform, so that what works here works there.
RIGHTS = (
    "--read-only",
    "--tmpfs",
    "/tmp:rw,mode=1777",
    "--cap-drop",
    "ALL",
    "--security-opt",
    "no-new-privileges",
    "--pids-limit",
    "4096",
    "--no-healthcheck",
)


class Image:
    """Runs `ENGINE run IMAGE serve` with a limit of `memory` bytes."""

    def __init__(self, engine: str, image: str, memory: int) -> None:
        self.engine, self.image, self.memory = engine, image, memory
        self.isolated = os.geteuid() == 0
        done = self._run("image", "inspect", image)
        if done.returncode:
            reason = " ".join(["", *done.stderr.strip().splitlines()[-1:]])
            raise CannotStart(f"{engine} has no image {image}:{reason}; `{engine} images` lists its images")

    def describe(self) -> str:
        network = "no network" if self.isolated else "the engine's network (without one only as root)"
        return f"the image {self.image} with {self.engine}: read-only, no capabilities, {network}"

    def start(self, launch: Launch) -> Handle:
        return Running(self, launch)

    def command(self, launch: Launch, port: int) -> list[str]:
        """The engine's command line; publishes `port` unless the container has no network."""
        network = ["--network", "none"] if self.isolated else ["-p", f"127.0.0.1:{port}:{PORT}"]
        memory = ["--memory", str(self.memory), "--memory-swap", str(self.memory), "--shm-size", str(self.memory // 2)]
        volumes = [
            ("-v", f"{path.absolute()}:{place}:ro")
            for path, place in [(launch.model, MODEL), (launch.models, MODELS)]
            if path
        ]
        variables = [("-e", f"{k}={v}") for k, v in (host_variables(PORT) | dict(launch.environment)).items()]
        options = [word for pair in [*volumes, *variables] for word in pair]
        head = [self.engine, "run", "--rm", "--name", launch.name, *RIGHTS]
        return [*head, *network, *memory, *options, self.image, "serve"]

    def ask(self, *arguments: str) -> str:
        """The engine's output; "" when it fails."""
        done = self._run(*arguments)
        return "" if done.returncode else done.stdout.strip()

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self.engine, *arguments], capture_output=True, text=True, env=engine_environment(), check=False
        )


class Running:
    """A container of an image. The engine's process runs as long and passes on its output and its exit code."""

    def __init__(self, image: Image, launch: Launch) -> None:
        self._image, self._name = image, launch.name
        self._picker = PortPicker()
        self.port = PORT if image.isolated else self._picker.pick(1)[0]
        self.models = MODELS
        self._process = subprocess.Popen(
            image.command(launch, self.port),
            env=engine_environment(),
            cwd=launch.folder,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.output: IO[bytes] = output_of(self._process)
        self.pid = self._first_process()
        self.network = self.pid if image.isolated else 0

    def _first_process(self) -> int:
        deadline = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            if pid := int(self._image.ask("inspect", "--format", "{{.State.Pid}}", self._name) or 0):
                return pid
            time.sleep(0.05)
        self.kill()
        raise CannotStart(f"{self._image.engine}: {self.output.read().decode(errors='replace').strip()[-500:]}")

    def exit_code(self) -> int | None:
        return self._process.poll()

    def terminate(self) -> None:
        self._image.ask("kill", "--signal", "TERM", self._name)

    def kill(self) -> None:
        self._image.ask("rm", "--force", self._name)
        if self._process.poll() is None:
            try:
                self._process.wait(timeout=START_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._picker.close()

    def changed_files(self) -> list[str]:
        return []


def find_engine(wanted: str = "") -> str:
    """The wanted engine, or else podman or docker, whichever is installed; raises CannotStart."""
    for name in [wanted] if wanted else ["podman", "docker"]:
        if shutil.which(name):
            return name
    raise CannotStart(f"no {wanted or 'podman and no docker'} here: install one, or run ./serve without --image")


def engine_environment() -> dict[str, str]:
    """The environment for the engine. CONTAINERS_HOME may name a folder with podman's storage.conf and
    containers.conf."""
    home = os.environ.get("CONTAINERS_HOME")
    if not home:
        return dict(os.environ)
    own = {"CONTAINERS_STORAGE_CONF": "storage.conf", "CONTAINERS_CONF": "containers.conf"}
    found = {variable: str(Path(home) / name) for variable, name in own.items() if (Path(home) / name).is_file()}
    return {**os.environ, **found}
