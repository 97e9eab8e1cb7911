"""Start both servers in the same mode with the same models, and name the rows to send to them.

Scenarios run in parallel. The parts of a scenario share servers.
"""

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

Sides = tuple[Side, Side]  # native Triton and this project


@dataclass(frozen=True)
class Part:
    title: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Scenario:
    """A mode with its rows. `start` yields the two sides of each part, and stops the servers at the
    end. `seconds` is roughly the duration."""

    name: str
    parts: tuple[Part, ...]
    start: Callable[[Path], Iterator[Sequence[Sides]]]
    seconds: int

    @contextmanager
    def started(self, folder: Path) -> Iterator[Sequence[Sides]]:
        yield from self.start(folder)


def _single(folder: Path) -> Iterator[Sequence[Sides]]:
    """Start a native server for each model, because it loads only the default model."""
    repository, models = _repository(folder), ("scale", "identity", "chain")
    with ExitStack() as stack:
        natives = [native.single(folder / model, repository, model) for model in models]
        for theirs in natives:
            stack.callback(theirs.stop)
        loaded = {startup.DEFAULT: "scale", "SERVE_LOAD_MODELS": ",".join(models)}
        ours = _ours(folder, repository, stack, **loaded)
        paths = ["/invocations", *(f"/invocations?model_name={model}" for model in models[1:])]
        yield [
            (_native_side(theirs), Side(ours.wait_ready().port, path=path))
            for theirs, path in zip(natives, paths, strict=True)
        ]


def _native_side(theirs: native.Native, path: str = "/invocations") -> Side:
    return Side(theirs.wait_ready().port, theirs.revive, path)


def _repository(folder: Path) -> Path:
    make_single_repository(folder / "models")
    return folder / "models"


def _ours(folder: Path, repository: Path, stack: ExitStack, **variables: str) -> Server:
    folder.mkdir(exist_ok=True)
    server = Server(folder, repository, SERVE_WORKERS="1", **variables)
    stack.callback(server.stop)
    return server


def _multi(folder: Path) -> Iterator[Sequence[Sides]]:
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
        native_side = replace(side, port=theirs.port, revive=theirs.revive, archives=PLATFORM)
        yield [(native_side, replace(side, port=ours.port))]


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


def _generating(folder: Path) -> Iterator[Sequence[Sides]]:
    repository = _repository(folder)
    with ExitStack() as stack:
        theirs = native.generating(folder, repository, "echo", "teller")
        stack.callback(theirs.stop)
        both = {startup.DEFAULT: "echo", "SERVE_LOAD_MODELS": "echo,teller"}
        plain = _ours(folder / "plain", repository, stack, **both, **{startup.KIND: "generate"})
        stream = {startup.DEFAULT: "teller", startup.KIND: "generate_stream"}
        streaming = _ours(folder / "streaming", repository, stack, **stream)
        port = plain.wait_ready().port
        yield [
            (_native_side(theirs, "/v2/models/echo/generate"), Side(port)),
            (
                _native_side(theirs, "/v2/models/teller/generate_stream"),
                Side(streaming.wait_ready().port),
            ),
            (
                _native_side(theirs, "/v2/models/teller/generate"),
                Side(port, path="/invocations?model_name=teller"),
            ),
        ]


def _starts(folder: Path) -> Iterator[Sequence[Sides]]:
    yield [(startup.SCRIPT, Side(-1))]


SINGLE = (
    Part("A single model", single.ROWS),
    Part("Datatypes", datatypes.ROWS),
    Part("An ensemble", datatypes.ENSEMBLE_ROWS),
)
GENERATING = (
    Part("generate", generate.GENERATE),
    Part("generate_stream", generate.STREAM),
    Part("generate of a decoupled model", generate.MANY),
)
SCENARIOS = (
    Scenario("single", SINGLE, _single, 30),
    Scenario("generating", GENERATING, _generating, 15),
    Scenario("multi", (Part("A multi-model endpoint", multi.ROWS),), _multi, 40),
    Scenario("start", (Part("Start-up", startup.ROWS),), _starts, 20),
    Scenario("variables", (Part("Start-up with variables", startup.VARIABLES),), _starts, 10),
)
