"""Find mistakes in the models: `serve --check`, and what `build_engines` writes.

    config.pbtxt --protobuf--> configuration --client--> example --preprocess--> the tensors that the inputs take

Settings and layout are checked before. The configuration of the other device is checked too. Models without a mistake
are then loaded into a tritonserver of their own, which listens on no port, and asked their examples:

    model folders -> links in a temporary folder -> tritonserver on Unix sockets there -> load -> example

It runs as `python -m serving.preparation.check`, because PID 1 has the standard library only; the environment has the
settings.
"""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from clients.base import ModelClient, Tensors, TensorSpec
from serving.bodies.examples import ask_example
from serving.bodies.instances import Decoder
from serving.clients import make_client
from serving.codecs import Limits
from serving.errors import ConfigError, ServingError, TritonUnavailable
from serving.host import tritonserver
from serving.host.processes import describe_exit, dying_with_us, remove_made
from serving.model_status.served_model import ServedModel, describe_model, served_model
from serving.repository.layout import CONFIG
from serving.repository.model_config import Unreadable, mistake_of_client, mistake_of_packages, read_merged
from serving.repository.store import Store
from serving.settings.table import GRPC_PORT, SECRETS, Settings
from serving.triton.gateway import TritonGateway
from serving.triton.quirks import PREFACE
from serving.triton.tensors import numpy_dtype

LOAD = "load"  # the argument that also has the models loaded


def main() -> int:
    settings = Settings.from_env(os.environ)
    if settings.multi_model:
        return _say(0, "nothing is wrong with the settings; archives are checked when they are loaded")
    paths = [repository / name for name in settings.load_models for repository in settings.model_repositories]
    folders = {path.name: path for path in paths if path.is_dir()}
    findings = list(check_models(settings, folders))
    for finding in findings:
        _say(1, finding)
    mistaken = {finding.partition(": ")[0] for finding in findings}
    whole = [name for name in folders if name not in mistaken]
    failed = bool(whole) and LOAD in sys.argv[1:] and loads(settings, folders, whole)
    if findings or failed:
        return 1
    return _say(0, f"nothing is wrong with the settings and the models {', '.join(folders)}")


def loads(settings: Settings, folders: Mapping[str, Path], asked: Collection[str]) -> bool:
    """Load these models and ask their examples. Say what happened to each. Return whether one failed."""
    try:
        failed = dict(failures(settings, folders, asked))
    except FileNotFoundError as err:
        return bool(_say(0, f"the models were not loaded: {err}"))
    for name in asked:
        _say(0, f"{name}: {' '.join(failed[name].split())}" if name in failed else f"{name}: loads and answers")
    return bool(failed)


def check_models(settings: Settings, folders: Mapping[str, Path]) -> Iterator[str]:
    """Yield a line for each mistake: model, file, what is wrong."""
    for name, folder in folders.items():
        for file in (folder / CONFIG, *sorted((folder / "configs").glob("*.pbtxt"))):
            for mistake in _mistakes(name, folder, file, settings):
                yield f"{name}: {file.relative_to(folder)}: {' '.join(mistake.split())}"


def _mistakes(name: str, folder: Path, file: Path, settings: Settings) -> Iterator[str]:
    try:
        config = read_merged(folder, file)
    except Unreadable as err:
        yield f"it cannot be read: {err.remedy}"
        return
    if mistake := mistake_of_packages(folder, config):
        yield mistake
    if mistake := mistake_of_client(folder, config, settings):
        yield mistake
        return
    if not config.input or not config.output:  # Triton completes it from the model's file
        return
    model = describe_model(name, folder, config)
    client, problem = _tried(lambda: make_client(model))
    if problem:
        yield f"the client cannot be made: {problem}"
    if client:
        yield from _mistakes_of_example(folder, client, Limits(settings.max_image_pixels))


def _mistakes_of_example(folder: Path, client: ModelClient, limits: Limits) -> Iterator[str]:
    example = next((path.name for path in sorted(folder.glob("example.*"))), "the client's example")
    instance, problem = _tried(lambda: client.codec.from_bytes(ServedModel(client.model, client).example(), limits))
    if problem:
        yield f"{example} is not {client.codec.expected}: {problem}"
        return
    tensors, problem = _tried(lambda: client.prepare([instance], client.defaults))
    if tensors is None:
        yield f"the client fails on {example}: {problem}"
        return
    yield from (f"from {example} the client makes {wrong}" for wrong in _misfits(client.model.inputs, tensors))


def _misfits(inputs: tuple[TensorSpec, ...], tensors: Tensors) -> Iterator[str]:
    """Compare the tensors of one instance with the inputs of config.pbtxt."""
    for spec in inputs:
        if spec.name not in tensors:
            if not spec.optional:
                yield f"no tensor '{spec.name}', which is an input"
            continue
        array = tensors[spec.name]
        row = array.shape[1:]
        if len(row) != len(spec.shape) or any(size not in (-1, got) for size, got in zip(spec.shape, row, strict=True)):
            yield f"'{spec.name}' {list(row)}, and the input is {list(spec.shape)}"
            continue
        strings = spec.datatype == "BYTES" and array.dtype.kind in "OSU"
        if not strings and spec.datatype != "BF16" and array.dtype != numpy_dtype(spec.datatype):
            yield f"'{spec.name}' of {array.dtype}, and the input is {spec.datatype}"


def _tried(call: Callable[[], Any]) -> tuple[Any, str]:
    """Return (result, "") or (None, what went wrong): a client's code may raise anything."""
    try:
        return call(), ""
    except (Exception, SystemExit) as err:
        return None, f"{type(err).__name__}: {err}"


def _say(code: int, line: str) -> int:
    sys.stdout.write(line + "\n")
    return code


EXIT_SECONDS = 5.0
PAUSE = 0.02
QUIET = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


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
            except ConfigError as err:
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
    decoder = Decoder(Limits(settings.max_image_pixels))
    for name in asked:
        try:
            gateway.load(name, settings.start_timeout)
            ask_example(gateway, decoder, served_model(gateway, name, folders[name]))
        except TritonUnavailable as err:
            raise TritonUnavailable(f"tritonserver ended while '{name}' was tried: {_last_line(run_dir)}") from err
        except ServingError as err:
            text = str(err).replace(str(run_dir / "models" / name), str(folders[name]))
            yield name, PREFACE.sub("", text)


@contextmanager
def _tritonserver(settings: Settings, run_dir: Path) -> Iterator[TritonGateway]:
    """Give a gateway to a tritonserver that serves no model yet. Raise TritonUnavailable if it does not start."""
    prefix, began = f"check-{secrets.token_hex(8)}", time.time()
    socket, backends = run_dir / f"grpc.sock:{GRPC_PORT}", tritonserver.backend_directory()
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
    command = [*dying_with_us("KILL"), *tritonserver.command(flags, backends, prefix)]
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
    remove_made(tritonserver.ENVIRONMENTS, "tritonserver", began)


if __name__ == "__main__":
    sys.exit(main())
