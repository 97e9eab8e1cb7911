"""Finds mistakes in the models, for `serve --check`, for model folders that change while they are
served, and for the models that `build_engines` writes.

For each configuration of a model, this creates the client, and compares the tensors that the client
makes from its example with the inputs in the configuration. The settings and the layout of the
repositories have already been checked.

Models without a mistake are then loaded into a temporary tritonserver, which listens only on a Unix
socket, and tested with their examples.

This is a separate process, `python -m serving.preparation.check`, because process 1 uses only the
standard library. It reads the settings from the environment.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from clients.base import Model, TensorSpec
from serving.bodies.decoder import Decoder
from serving.bodies.examples import check_loaded_model
from serving.clients import make_client
from serving.codecs import Limits
from serving.errors import ConfigError, ServingError, TritonUnavailable, described
from serving.host import tritonserver
from serving.host.processes import describe_exit, dying_with_us, last_line, remove_leftovers
from serving.model_lifecycle import loading
from serving.model_status.served_model import ServedModel, describe_model, served_model
from serving.repository.layout import CLIENT, CONFIG
from serving.repository.model_config import Unreadable, mistake_of_client, read_merged
from serving.repository.packages import mistake_of_packages
from serving.repository.paths import with_sources
from serving.repository.staging import Store
from serving.settings.settings import GRPC_PORT, SECRETS, Settings
from serving.triton.gateway import TritonGateway
from serving.triton.quirks import PREFACE
from serving.triton.tensors import Array, numpy_dtype

EXIT_SECONDS = 5.0  # time that tritonserver gets to exit
PAUSE = 0.02  # seconds between checks whether tritonserver is live
# Variables that are set to 1 for the temporary tritonserver. Python then writes no bytecode, and
# the libraries of models send no telemetry and download nothing.
QUIET = (
    "PYTHONDONTWRITEBYTECODE",
    "ORT_DISABLE_TELEMETRY",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
)


@dataclass(frozen=True)
class Report:
    """The result of a check. `mistakes` contains pairs (model, what is wrong with it), and `sound`
    the other models. These loaded and answered their examples, unless `not_loaded` says why no
    model was loaded."""

    mistakes: list[tuple[str, str]]
    sound: list[str]
    not_loaded: str = ""


def main(words: list[str]) -> int:
    """Check the models that are loaded at startup, and print the Report: as JSON if `words`
    contains "json", otherwise as text. Return 1 if a model has a mistake, else 0, even if no model
    could be loaded because there is no tritonserver."""
    # at SIGTERM, raise an exception, so that the temporary tritonserver is stopped
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    # only the report goes to stdout; whatever a model's client.py prints goes to stderr
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as output:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        return _check_and_print(output, as_json="json" in words)


def _check_and_print(output: TextIO, as_json: bool) -> int:
    """Check the models, print the Report to `output`, and return the exit code of `main`."""
    settings = Settings.from_env(os.environ)
    if not settings.load_models:  # multi-model or on-demand mode: calls load the models
        output.write(
            "nothing is wrong with the settings; archives are checked when they are loaded\n"
        )
        return 0
    folders = {}
    for name in settings.load_models:
        for repository in settings.model_repositories:
            if (repository / name).is_dir():
                folders[name] = repository / name
    report = check(settings, folders)
    if as_json:
        json.dump(asdict(report), output)
    else:
        output.writelines(f"{line}\n" for line in _lines(report))
    return 1 if report.mistakes else 0


def check(settings: Settings, folders: Mapping[str, Path]) -> Report:
    """Check the models in `folders`, load those without a mistake into a temporary tritonserver,
    and test these with their examples. Return the Report."""
    mistakes = list(check_models(settings, folders))
    mistaken = {name for name, _ in mistakes}
    to_load = [name for name in folders if name not in mistaken]
    failures: dict[str, str] = {}
    try:
        if to_load:
            failures = dict(failures_in_tritonserver(settings, folders, to_load))
    except FileNotFoundError as err:
        return Report(mistakes, to_load, f"the models were not loaded: {err}")
    for name in to_load:  # the mistakes of other models in `failures` are already reported
        if name in failures:
            mistakes.append((name, " ".join(failures[name].split())))
    return Report(mistakes, [name for name in to_load if name not in failures])


def _lines(report: Report) -> Iterator[str]:
    """Yield the report's lines for people."""
    for name, mistake in report.mistakes:
        yield f"{name}: {mistake}"
    if report.not_loaded:
        yield report.not_loaded
    else:
        for name in report.sound:
            yield f"{name}: loads and answers"
    if not report.mistakes:
        yield f"nothing is wrong with the settings and the models {', '.join(report.sound)}"


def check_models(settings: Settings, folders: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Yield (model, mistake) for each mistake that is found without tritonserver. The mistake names
    the file and says what is wrong."""
    for name, folder in folders.items():
        texts = []
        for file in (folder / CONFIG, *sorted(folder.glob("configs/*.pbtxt"))):
            for source, mistake in _mistakes(name, folder, file, settings):
                texts.append(f"{source.relative_to(folder)}: {' '.join(mistake.split())}")
        # several configurations may find the same mistake in client.py
        for text in dict.fromkeys(texts):
            yield name, text


def _mistakes(
    name: str, folder: Path, file: Path, settings: Settings
) -> Iterator[tuple[Path, str]]:
    """Yield (file with the mistake, what is wrong) for each mistake in `file`, a configuration of
    the model, or in the client that the configuration names."""
    try:
        config = read_merged(folder, file)
    except Unreadable as err:
        yield file, f"it cannot be read: {err.remedy}"
        return
    if mistake := mistake_of_packages(folder, config):
        yield file, mistake
    if mistake := mistake_of_client(folder, config, settings):
        yield file, mistake
    elif config.input and config.output:  # otherwise Triton finds the tensors in the model's file
        own_client = folder / CLIENT
        source = own_client if own_client.is_file() else file
        for mistake in _mistakes_of_client(describe_model(name, folder, config)):
            yield source, mistake


def _mistakes_of_client(model: Model) -> Iterator[str]:
    """Create the model's client, and compare the tensors that it makes from the model's example
    with the model's inputs. Yield what is wrong. Yield nothing if the model has no client."""
    file = ServedModel(model).example_file()
    example = file.name if file else "the client's example"
    failure = "the client cannot be made"  # what to report if the next step fails
    try:
        client = make_client(model)
        if client is None:
            return
        failure = f"{example} cannot be read"
        data = ServedModel(model, client).example()
        failure = f"{example} is not {client.codec.expected}"
        instance = client.codec.from_bytes(data, Limits())
        failure = f"the client fails on {example}"
        tensors = client.prepare([instance], client.defaults)
    except (Exception, SystemExit) as err:  # a client's code may raise anything
        note = _note_of_line(err, model.path)
        yield f"{failure}: {described(err)}{note}"
        return
    for spec in model.inputs:
        if mistake := _mistake_of_tensor(spec, tensors.get(spec.name)):
            yield f"from {example} the client makes {mistake}"


def _note_of_line(err: BaseException, folder: Path) -> str:
    """Return a note with the line of the model's own client.py at which the error occurred, or ""
    if the traceback does not contain that file."""
    frames = traceback.extract_tb(err.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) == folder / CLIENT]
    return f" (line {own[-1].lineno})" if own else ""


def _mistake_of_tensor(spec: TensorSpec, array: Array | None) -> str:
    """Return what is wrong with the `array` that a client makes for an input, or "" if nothing
    is."""
    if array is None:
        return "" if spec.optional else f"no tensor for the input '{spec.name}'"
    row = array.shape[1:]  # without the batch dimension, which spec.shape omits too
    has_rank = len(row) == len(spec.shape)
    has_sizes = all(size in (-1, got) for size, got in zip(spec.shape, row, strict=False))
    if not (has_rank and has_sizes):
        return f"'{spec.name}' with shape {list(row)}, but the input has {list(spec.shape)}"
    is_text = spec.datatype == "BYTES" and array.dtype.kind in "OSU"
    # any array is converted to BF16, which NumPy does not have
    is_same_type = spec.datatype == "BF16" or array.dtype == numpy_dtype(spec.datatype)
    if not (is_text or is_same_type):
        return f"'{spec.name}' as {array.dtype}, but the input is {spec.datatype}"
    return ""


def failures_in_tritonserver(
    settings: Settings, folders: Mapping[str, Path], names: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield (model, reason) for each model in `folders` that cannot be staged, and for each model
    in `names` that does not load or fails on its example. `folders` contains the models in `names`
    and all models that they call. If tritonserver ends, its last message is the reason for all
    models that have not been tested. Raise FileNotFoundError if there is no tritonserver."""
    with tempfile.TemporaryDirectory(prefix="serve-check-", ignore_cleanup_errors=True) as scratch:
        run_dir = Path(scratch)
        pending = list(names)  # the models without a result yet; the first is tested next
        store = Store(run_dir / "models", settings, tritonserver.backend_directory())
        for name, folder in folders.items():
            try:
                store.stage(folder, name)
            except ConfigError as err:
                if name in pending:
                    pending.remove(name)
                yield name, str(err)
        decoder = Decoder(Limits())
        try:
            with _tritonserver(settings, run_dir) as gateway:
                while pending:
                    name = pending[0]
                    try:
                        loading.load(gateway, store, name, folders, settings.start_timeout)
                        served = served_model(gateway, name, folders[name])
                        check_loaded_model(gateway, decoder, served)
                    except TritonUnavailable as err:
                        reason = f"tritonserver ended while it tested '{name}': "
                        raise TritonUnavailable(reason + last_line(_log(run_dir))) from err
                    except ServingError as err:
                        reason = PREFACE.sub("", str(err))
                        reason += _poll_failure(run_dir, name, str(err))
                        yield name, with_sources(reason, {store.path(name): folders[name]})
                    pending.pop(0)
        except TritonUnavailable as err:
            for name in pending:
                yield name, str(err)


@contextmanager
def _tritonserver(settings: Settings, run_dir: Path) -> Iterator[TritonGateway]:
    """Start a tritonserver without models, whose output goes to the file `log` in `run_dir`. Yield
    a gateway to it. Raise TritonUnavailable if it does not start. At the end, stop it, and remove
    the files that it and its Python stubs leave in /dev/shm and /tmp."""
    prefix = f"check-{secrets.token_hex(8)}"
    began = time.time()
    with (run_dir / "log").open("wb") as log:
        process = subprocess.Popen(
            _command(settings, run_dir, prefix),
            env=_environment(),
            cwd=run_dir,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
        )
    gateway = TritonGateway(f"unix:{run_dir}/grpc.sock:{GRPC_PORT}", settings.grpc_timeout)
    try:
        _wait_until_live(gateway, process, settings.start_timeout, run_dir)
        yield gateway
    finally:
        gateway.close()
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for path in Path("/dev/shm").glob(f"{prefix}*"):
            path.unlink(missing_ok=True)
        remove_leftovers(tritonserver.ENVIRONMENTS, "tritonserver", began)


def _command(settings: Settings, run_dir: Path, prefix: str) -> list[str]:
    """Return tritonserver's command line. The names of its files in /dev/shm begin with
    `prefix`."""
    backends = tritonserver.backend_directory()
    flags: dict[str, object] = {
        "model-repository": run_dir / "models",
        "model-control-mode": "explicit",
        "backend-directory": backends,
        "allow-http": "false",
        "allow-metrics": "false",
        "grpc-address": f"unix:{run_dir}/grpc.sock",
        "grpc-port": GRPC_PORT,
        "exit-timeout-secs": int(EXIT_SECONDS),
    }
    command = [*dying_with_us("KILL"), *tritonserver.command(flags, backends, prefix)]
    options = [
        word for word in settings.additional_arguments if word.startswith("--backend-config")
    ]
    return command + options


def _environment() -> dict[str, str]:
    """Return tritonserver's environment, without secrets, and with the variables in QUIET."""
    environ = {name: value for name, value in os.environ.items() if name not in SECRETS}
    environ |= dict.fromkeys(QUIET, "1")
    return tritonserver.with_stub_wait(tritonserver.environment(environ))


def _wait_until_live(
    gateway: TritonGateway, process: subprocess.Popen[bytes], seconds: float, run_dir: Path
) -> None:
    """Wait until tritonserver is live. Raise TritonUnavailable if it ends first, or is not live
    after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(ServingError):
            if gateway.is_live():
                return
        if (code := process.poll()) is not None:
            reason = f"tritonserver {describe_exit(code)}: {last_line(_log(run_dir))}"
            raise TritonUnavailable(reason)
        if time.monotonic() > deadline:
            raise TritonUnavailable(f"tritonserver did not start in {seconds:g} s")
        time.sleep(PAUSE)


def _poll_failure(run_dir: Path, name: str, error: str) -> str:
    """Return ": " and why Triton rejected the model's configuration, or "" if `error` says
    something else. Triton's response omits the reason, but its log contains it."""
    if "failed to poll" not in error:
        return ""
    pattern = rf"Poll failed for model directory '{re.escape(name)}': (.*)"
    reasons = re.findall(pattern, _log(run_dir))
    return f": {reasons[-1]}" if reasons else ""


def _log(run_dir: Path) -> str:
    return (run_dir / "log").read_text(errors="replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
