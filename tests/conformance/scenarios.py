"""Start both servers in the same mode with the same models, and name the rows to send to them."""

import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tests.conformance import datatypes, generate, multi, native, single, startup
from tests.conformance.behaviours import Row, Side
from tests.conformance.models import make_single_repository
from tests.conformance.multi import make_archives
from tests.conformance.native import PLATFORM
from tests.support.harness import Server


@dataclass(frozen=True)
class Scenario:
    """`start` yields the two sides and stops them at the end. `seconds` is roughly its duration."""

    name: str
    title: str
    rows: Sequence[Row]
    start: Callable[[Path], Iterator[tuple[Side, Side]]]
    seconds: int = 8

    @contextmanager
    def started(self, folder: Path) -> Iterator[tuple[Side, Side]]:
        yield from self.start(folder)


def _single(model: str) -> Callable[[Path], Iterator[tuple[Side, Side]]]:
    def start(folder: Path) -> Iterator[tuple[Side, Side]]:
        repository = _repository(folder)
        with ExitStack() as stack:
            theirs = native.single(folder, repository, model)
            stack.callback(theirs.stop)
            ours = _ours(folder, repository, stack, SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=model)
            theirs.wait_ready()
            ours.wait_ready()
            yield Side(theirs.port, theirs.revive), Side(ours.port)

    return start


def _repository(folder: Path) -> Path:
    make_single_repository(folder / "models")
    return folder / "models"


def _ours(folder: Path, repository: Path, stack: ExitStack, **variables: str) -> Server:
    server = Server(folder, repository, SERVE_WORKERS="1", **variables)
    stack.callback(server.stop)
    return server


def _multi(folder: Path) -> Iterator[tuple[Side, Side]]:
    with ExitStack() as stack:
        archives, token = (
            stack.enter_context(_archives(folder)),
            f"conformance{secrets.token_hex(4)}",
        )
        side = Side(0, archives=archives, token=token, elsewhere=folder / "elsewhere")
        stack.callback(_remove, archives, token)
        make_archives(side)
        theirs = native.multi(folder / "native", archives)
        stack.callback(theirs.stop)
        own = {"SAGEMAKER_MULTI_MODEL": "true", "SERVE_MODEL_REPOSITORY": str(archives)}
        ours = _ours(folder, folder / "unused", stack, **own)
        theirs.wait_ready()
        ours.wait_ready()
        yield (
            replace(side, port=theirs.port, revive=theirs.revive, archives=PLATFORM),
            replace(side, port=ours.port),
        )


@contextmanager
def _archives(folder: Path) -> Iterator[Path]:
    """Return /opt/ml/models, or another folder if this user cannot create it."""
    created = [path for path in (PLATFORM.parent, PLATFORM) if not path.exists()]
    try:
        PLATFORM.mkdir(parents=True, exist_ok=True)
    except OSError:
        (folder / "archives").mkdir()
        yield folder / "archives"
        return
    yield PLATFORM
    for path in reversed(created):
        with suppress(OSError):
            path.rmdir()


def _remove(archives: Path, token: str) -> None:
    for archive in archives.glob(f"{token}.*"):
        shutil.rmtree(archive)


def _generating(model: str, kind: str) -> Callable[[Path], Iterator[tuple[Side, Side]]]:
    def start(folder: Path) -> Iterator[tuple[Side, Side]]:
        repository = _repository(folder)
        with ExitStack() as stack:
            theirs = native.generating(folder, repository, model)
            stack.callback(theirs.stop)
            variables = {
                "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": model,
                "SAGEMAKER_TRITON_INFERENCE_TYPE": kind,
            }
            ours = _ours(folder, repository, stack, **variables)
            theirs.wait_ready()
            ours.wait_ready()
            yield Side(theirs.port, theirs.revive, f"/v2/models/{model}/{kind}"), Side(ours.port)

    return start


def _starts(folder: Path) -> Iterator[tuple[Side, Side]]:
    yield startup.SCRIPT, Side(-1)


SCENARIOS = (
    Scenario("scale", "A single model", single.ROWS, _single("scale"), 20),
    Scenario("identity", "Datatypes", datatypes.ROWS, _single("identity")),
    Scenario("chain", "An ensemble", datatypes.ENSEMBLE_ROWS, _single("chain")),
    Scenario("generate", "generate", generate.GENERATE, _generating("echo", "generate")),
    Scenario(
        "stream", "generate_stream", generate.STREAM, _generating("teller", "generate_stream")
    ),
    Scenario(
        "many", "generate of a decoupled model", generate.MANY, _generating("teller", "generate")
    ),
    Scenario("multi", "A multi-model endpoint", multi.ROWS, _multi, 40),
    Scenario("start", "Start-up", startup.ROWS, _starts, 20),
    Scenario("variables", "Start-up with variables", startup.VARIABLES, _starts, 20),
)
