"""Load models into a tritonserver of their own and ask each its example: the end of a build and of `serve --check`.

    model folders -> links in a temporary folder -> tritonserver on Unix sockets there -> load -> example

tritonserver listens on no port. It is ended, and the folder removed, before the last finding is returned.
"""

import glob
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from serving.codecs import Limits
from serving.decoding import Decoder
from serving.errors import LoadFailed, ServingError, TritonUnavailable
from serving.host import tritonserver
from serving.host.processes import describe_exit, dying_with_us, runs
from serving.inference.example import ask_example
from serving.inference.registry import served_model
from serving.inference.service import Inference
from serving.manager.manager import PREFACE
from serving.models.store import Store
from serving.settings.table import GRPC_PORT, SECRETS, Settings, TritonSockets
from serving.triton.gateway import TritonGateway

EXIT_SECONDS = 5.0
PAUSE = 0.02
QUIET = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
ENVIRONMENTS = "/tmp/python_env_??????"  # where each python backend unpacks packages


def failures(settings: Settings, folders: Mapping[str, Path], asked: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield (model, reason) for each model of `asked` that does not load or does not answer its example. `folders` has
    the models and all that they call. Raise FileNotFoundError if there is no tritonserver here."""
    with tempfile.TemporaryDirectory(prefix="serve-check-", ignore_cleanup_errors=True) as scratch:
        run_dir = Path(scratch)
        store = Store(run_dir / "models", settings, tritonserver.backend_directory())
        unstaged: set[str] = set()
        for name, folder in folders.items():
            try:
                store.stage(folder, name)
            except LoadFailed as err:
                unstaged.add(name)
                yield name, str(err)
        asked = [name for name in asked if name not in unstaged]
        try:
            with _tritonserver(settings, run_dir) as gateway:
                yield from _failures(settings, gateway, folders, asked, run_dir)
        except TritonUnavailable as err:
            yield ", ".join(asked), str(err)


def _failures(
    settings: Settings, gateway: TritonGateway, folders: Mapping[str, Path], asked: Collection[str], run_dir: Path
) -> Iterator[tuple[str, str]]:
    inference = Inference(gateway, Decoder(Limits(settings.max_image_pixels)))
    for name in asked:
        try:
            gateway.load(name, settings.start_timeout)
            ask_example(inference, served_model(gateway, name, folders[name]))
        except TritonUnavailable as err:
            raise TritonUnavailable(f"tritonserver ended while '{name}' was tried: {_last_line(run_dir)}") from err
        except ServingError as err:
            text = str(err).replace(str(run_dir / "models" / name), str(folders[name]))
            yield name, PREFACE.sub("", text)


@contextmanager
def _tritonserver(settings: Settings, run_dir: Path) -> Iterator[TritonGateway]:
    """Give a gateway to a tritonserver that serves no model yet. Raise TritonUnavailable if it does not start."""
    prefix, began = f"check-{secrets.token_hex(8)}", time.time()
    socket, backends = TritonSockets(run_dir).grpc, tritonserver.backend_directory()
    flags: dict[str, object] = {
        "model-repository": run_dir / "models",
        "model-control-mode": "explicit",
        "backend-directory": backends,
        "allow-http": "false",
        "allow-metrics": "false",
        "grpc-address": f"unix:{socket}".removesuffix(f":{GRPC_PORT}"),
        "grpc-port": GRPC_PORT,
        "exit-timeout-secs": int(EXIT_SECONDS),
    }
    command = [*dying_with_us("KILL"), str(tritonserver.binary())]
    command += [f"--{name}={value}" for name, value in flags.items()]
    if tritonserver.only_python_backends(backends):  # what is staged is complete
        command.append("--disable-auto-complete-config")
    command += [
        f"--backend-config={one},shm-region-prefix-name={prefix}" for one in tritonserver.python_backends(backends)
    ]
    command += [each for each in settings.additional_arguments if each.startswith("--backend-config")]
    environ = {name: value for name, value in os.environ.items() if name not in SECRETS} | QUIET
    environ = tritonserver.with_stub_wait(tritonserver.environment(environ))
    with ExitStack() as stack:
        log = stack.enter_context((run_dir / "log").open("wb"))
        process = subprocess.Popen(
            command, env=environ, cwd=run_dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )
        stack.callback(_end, process, prefix, began)
        gateway = TritonGateway(f"unix:{socket}", settings.grpc_timeout)
        stack.callback(gateway.close)
        deadline = time.monotonic() + settings.start_timeout
        while not _is_live(gateway):
            if (code := process.poll()) is not None:
                raise TritonUnavailable(f"tritonserver {describe_exit(code)}: {_last_line(run_dir)}")
            if time.monotonic() > deadline:
                raise TritonUnavailable(f"tritonserver did not start in {settings.start_timeout:g} s")
            time.sleep(PAUSE)
        yield gateway


def _is_live(gateway: TritonGateway) -> bool:
    try:
        return gateway.is_live()
    except ServingError:
        return False


def _last_line(run_dir: Path) -> str:
    lines = [line for line in (run_dir / "log").read_text(errors="replace").splitlines() if line.strip()]
    return (lines or ["it says nothing"])[-1]


def _end(process: "subprocess.Popen[bytes]", prefix: str, began: float) -> None:
    """End tritonserver and its stubs, and remove what they leave in /dev/shm and /tmp."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(EXIT_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for path in Path("/dev/shm").glob(f"{prefix}*"):
        path.unlink(missing_ok=True)
    folders = glob.glob(ENVIRONMENTS)  # noqa: PTH207
    if folders and runs("tritonserver"):  # nobody can tell which are that one's
        return
    for folder in map(Path, folders):
        with suppress(OSError):
            if folder.stat().st_uid == os.geteuid() and folder.stat().st_mtime >= began:
                shutil.rmtree(folder)
