"""Starts the servers to compare, each with its own processes and port, and creates their
requests."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import chain
from pathlib import Path

import psutil
from onnx import save
from onnx.parser import parse_model

from bench.scenarios import ROOT, Request, Scenario
from bench.work import BUNDLED, KINDS
from serving.host import tritonserver
from serving.host.network import ask
from simulate.ports import PortPicker

CACHE = ROOT / ".cache" / "bench"
# torch is not in a peer's lock file, because the lock file would then bring CUDA
TORCH = ROOT / "requirements" / "torch.txt"
NEED_TORCH = ("infinity",)
SUSPENDED = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
PORTS = PortPicker(range(12000, 14000))  # below the ports that the kernel gives to clients
START_SECONDS = 240
STOP_SECONDS = 40
# a part of a program's command line -> the name of the program in the results
PROGRAMS = {
    "nginx": "nginx",
    "gunicorn": "gunicorn",
    "backend_stub": "model",
    "bin/tritonserver": "tritonserver",
}
MEAN = """platform: "onnxruntime_onnx"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [-1] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
instance_group { count: 1 kind: KIND_CPU }
"""
MEAN_GRAPH = """<ir_version: 8, opset_import: ["": 18]>
mean (float[n, m] x) => (float[n, 1] y) <int64[1] axes = {1}> {
    y = ReduceMean <keepdims = 1> (x, axes)
}
"""

# the models that a server has, keyed by the form of its requests
MODELS = {
    "ours": set(KINDS),
    "plain": set(KINDS),
    "base64": set(BUNDLED),
    "openai": {"bert"},
    "triton": {"mean"},
}


@dataclass(frozen=True)
class Peer:
    """Describes how another server is started, with `python -m` and these `arguments`. The server
    answers 200 on the path `ready` once it is ready. `form` is the format of its requests: a key of
    MODELS."""

    arguments: str
    ready: str
    form: str = "base64"


PEERS = {
    "litserve": Peer("bench.peers.litserve_server {port}", "/health"),
    "bentoml": Peer(
        "bentoml serve bench.peers.bentoml_server:Models --host 127.0.0.1 --port {port}", "/readyz"
    ),
    "mlserver": Peer("bench.peers.mlserver_server {port} {scratch}", "/v2/models/models/ready"),
    "infinity": Peer("bench.peers.infinity_server {port} {scratch}", "/health", "openai"),
}


class NotStarted(Exception):
    """Raised if a server does not become ready, or if its answers are wrong. The message says
    why."""


@dataclass
class Server:
    """A running server. `form` is the format of its requests: a key of MODELS."""

    name: str
    form: str
    port: int
    processes: list[psutil.Process]

    def supports(self, scenario: Scenario) -> bool:
        """Return whether the server has all models of the scenario."""
        return scenario.models() <= MODELS[self.form]

    def http_request(self, request: Request) -> tuple[str, dict[str, str], bytes]:
        """Return the path, the headers and the body with which this server gets a request."""
        headers = {"Content-Type": request.media_type}
        if self.form == "ours":
            headers["X-Amzn-SageMaker-Target-Model"] = request.model
            version = f"&model_version={request.version}" if request.version else ""
            return f"/invocations?model_name={request.model}{version}", headers, request.body
        if self.form == "triton":
            if size := request.media_type.partition("json-header-size=")[2]:
                headers = {"Inference-Header-Content-Length": size}
            version = f"/versions/{request.version}" if request.version else ""
            return f"/v2/models/{request.model}{version}/infer", headers, request.body
        if self.form == "base64":
            return f"/{request.model}", {"Content-Type": "application/json"}, request.as_base64()
        if self.form == "openai":
            document = {"model": request.model, "input": request.plain.decode()}
            return (
                "/embeddings",
                {"Content-Type": "application/json"},
                json.dumps(document).encode(),
            )
        return f"/{request.model}", {"Content-Type": "application/octet-stream"}, request.plain

    def suspend(self) -> None:
        """Suspend all processes, and wait until they take no processor time."""
        processes = list(self._all())
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                while process.status() not in SUSPENDED:
                    time.sleep(0.001)

    def resume(self) -> None:
        """Continue all processes. tritonserver comes before its stubs, which end if it does not
        answer them."""
        for process in self._all():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def processor_seconds(self) -> dict[str, float]:
        """Return the processor time used so far in seconds, keyed by program: nginx, gunicorn,
        tritonserver, model, other."""
        used: dict[str, float] = {}
        for process in self._all():
            try:
                times = process.cpu_times()
                command = " ".join(process.cmdline())
            except psutil.Error:
                continue
            program = next((name for word, name in PROGRAMS.items() if word in command), "other")
            used[program] = used.get(program, 0.0) + times.user + times.system
        return used

    def memory(self) -> int:
        """Return the memory in bytes, with shared memory counted proportionally (PSS)."""
        return sum(process.memory_full_info().pss for process in self._all())

    def _all(self) -> list[psutil.Process]:
        children = (root.children(recursive=True) for root in self.processes)
        return [*self.processes, *chain.from_iterable(children)]


@contextmanager
def alone(measured: Server | None, servers: Iterable[Server]) -> Iterator[None]:
    """Suspend all servers but the `measured` one in this context, because even an idle LitServe
    takes 0.13 of a processor."""
    others = [server for server in servers if server is not measured]
    try:
        for server in others:
            server.suspend()
        yield
    finally:
        for server in others:
            server.resume()


def make_repository(folder: Path) -> Path:
    """Create a repository with the scenarios' bundled models and with `mean`, which computes the
    mean of a row of floats."""
    for name in BUNDLED:
        shutil.copytree(ROOT / "model_repository" / name, folder / name)
    version = folder / "mean" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(MEAN)
    save(parse_model(MEAN_GRAPH), version / "model.onnx")
    return folder


@contextmanager
def running(names: list[str], before: Path | None) -> Iterator[list[Server]]:
    """Yield the named servers once they are ready. `before` is another checkout of this project,
    whose server is called "before"."""
    with ExitStack() as stack:
        scratch = tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(scratch))
        repository = make_repository(folder / "models")
        starters = {"bare": _bare, "triton": _triton, **dict.fromkeys(PEERS, _peer)}
        servers: list[Server] = []
        for name in names:
            root = before if name == "before" and before else ROOT
            start = starters.get(name, _ours)  # "ours", "default" and "before" run this project
            servers.append(stack.enter_context(start(name, root, repository, folder / name)))
        yield servers


def _ours(
    name: str, root: Path, repository: Path, scratch: Path, grpc: int = 0
) -> AbstractContextManager[Server]:
    """Start this project's server, with Triton's gRPC on the port `grpc`, or else on any port."""
    port = PORTS.pick()
    variables = {
        "PORT": str(port),
        "SERVE_HOST": "127.0.0.1",
        "SERVE_MODEL_REPOSITORY": str(repository),
        # "ours" uses the same engine as the other servers, "default" the one that `serve` chooses
        "SERVE_CPU_ENGINE": "auto" if name.startswith("default") else "onnxruntime",
        "SAGEMAKER_TRITON_ALLOW_GRPC": "true",
        "SAGEMAKER_TRITON_GRPC_PORT": str(grpc or PORTS.pick()),
        "SERVE_HANG_TIMEOUT": "0",  # the server is suspended while others are measured
    }
    command = [str(root / ".venv/bin/python"), str(root / "serve")]
    return _started(name, "ours", port, command, root, variables, scratch, "/ping")


@contextmanager
def _bare(name: str, root: Path, repository: Path, scratch: Path) -> Iterator[Server]:
    """Start gunicorn as this project does, in front of the tritonserver of a separate `serve`."""
    grpc = PORTS.pick()
    port = PORTS.pick()
    variables = {"BENCH_TRITON": f"127.0.0.1:{grpc}", "BENCH_REPOSITORY": str(repository)}
    options = "--worker-class gthread --workers 2 --threads 16 --keep-alive 75 --timeout 0"
    command = [sys.executable, "-m", "gunicorn", "bench.bare:app", *options.split()]
    command += ["--bind", f"127.0.0.1:{port}"]
    with (
        _ours(f"{name}'s triton", root, repository, scratch, grpc) as triton,
        _started(name, "plain", port, command, root, variables, scratch, "/ping") as server,
    ):
        yield replace(server, processes=[*server.processes, *triton.processes])


def _triton(
    name: str, root: Path, repository: Path, scratch: Path
) -> AbstractContextManager[Server]:
    """Start Triton's own HTTP endpoint, with only the model `mean`."""
    port = PORTS.pick()
    command = [
        str(tritonserver.binary()),
        f"--model-repository={repository}",
        f"--backend-directory={tritonserver.backend_directory()}",
        "--model-control-mode=explicit",
        "--load-model=mean",
        "--allow-grpc=false",
        "--allow-metrics=false",
        "--http-address=127.0.0.1",
        f"--http-port={port}",
    ]
    variables = tritonserver.environment(os.environ)
    return _started(name, "triton", port, command, root, variables, scratch, "/v2/health/ready")


def _peer(name: str, root: Path, repository: Path, scratch: Path) -> AbstractContextManager[Server]:
    port = PORTS.pick()
    peer = PEERS[name]
    arguments = peer.arguments.format(port=port, scratch=scratch)
    command = [str(environment(name)), "-m", *arguments.split()]
    variables = {"BENCH_REPOSITORY": str(repository), "BENTOML_DO_NOT_TRACK": "True"}
    return _started(name, peer.form, port, command, root, variables, scratch, peer.ready)


def environment(peer: str) -> Path:
    """Return the Python of a peer's own environment, which is created from its lock file on the
    first call."""
    folder = CACHE / peer
    lock = ROOT / "bench" / "peers" / f"{peer}.lock"
    python = folder / "bin" / "python"
    installed = folder / "installed"
    if not installed.is_file() or installed.read_bytes() != lock.read_bytes():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "--no-deps", "-r"]
        if peer in NEED_TORCH:
            subprocess.run([*install, str(TORCH)], check=True)
        subprocess.run([*install, str(lock)], check=True)
        installed.write_bytes(lock.read_bytes())
    return python


@contextmanager
def _started(
    name: str,
    form: str,
    port: int,
    command: list[str],
    root: Path,
    own: dict[str, str],
    scratch: Path,
    ready: str,
) -> Iterator[Server]:
    """Start a server with its `own` variables. Yield it as soon as it answers 200 on the path
    `ready`, and stop it afterwards. Raise NotStarted if it does not become ready."""
    scratch.mkdir(parents=True, exist_ok=True)
    log = scratch / f"{form}.log"
    environ = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": str(root)} | own
    with log.open("wb") as output:
        process = psutil.Popen(command, cwd=root, env=environ, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(port, ready):
            if process.poll() is not None or time.monotonic() > deadline:
                raise NotStarted(
                    f"{name} does not start:\n{log.read_text(errors='replace')[-3000:]}"
                )
            time.sleep(0.1)
        yield Server(name, form, port, [process])
    finally:
        with suppress(psutil.NoSuchProcess):
            family = [process, *process.children(recursive=True)]
            process.terminate()
            _ended, alive = psutil.wait_procs(family, STOP_SECONDS)
            for survivor in alive:
                survivor.kill()


def _answers(port: int, path: str) -> bool:
    with suppress(OSError):
        status, *_ = ask(("127.0.0.1", port), path, timeout=3)
        return status == HTTPStatus.OK
    return False
