"""python -m bench curves: cost against work, ours and Triton's own: body size, batch, callers, models."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import environments
from bench.environments import REPORT
from bench.load import Sample, Wrong
from bench.multimodel import NAMES, memory_by_models
from bench.peer_table import BY_NAME
from bench.report import TITLES, table
from bench.repository import CACHE, ROOT
from bench.scenarios import FULL_MODELS, RESNET_WORK, SHORT_WORK
from bench.servers import Server
from bench.workload import Workload, images, tensor

SECONDS = 2
SERVERS = ("ours", "triton")
BYTES = tuple(1000 * factor for factor in (1, 4, 16, 64, 256, 1000, 4000, 16000, 24000))
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CALLERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MODELS = (1, 8, 16, 32, 64)


@dataclass(frozen=True)
class Point:
    """One measurement; the 503 of an admission control count as errors, not as replies."""

    x: float
    rate: float
    p50: float
    p99: float
    errors: int


@dataclass(frozen=True)
class Curve:
    """`work` and callers by x."""

    name: str
    title: str
    axis: str
    xs: Sequence[int]
    ask: Callable[[int], tuple[Workload, int]]


CURVES = (
    Curve("size-binary", "FP32 tensor as bytes", "bytes", BYTES, lambda n: (tensor(n // 4, True), 4)),
    Curve("size-json", "FP32 tensor as JSON", "bytes", BYTES, lambda n: (tensor(max(1, n // 20)), 4)),
    Curve("batch", "ResNet-50, images in one request", "images", BATCHES,
          lambda n: (images("resnet50", n, (320, 240)), 1)),
    Curve("callers-image", "ResNet-50, callers", "callers", CALLERS, lambda n: (RESNET_WORK()[0], n)),
    Curve("callers-text", "Embedding of 8 tokens, callers", "callers", CALLERS, lambda n: (SHORT_WORK()[0], n)),
    Curve("callers-tensor", "4 floats, JSON, callers", "callers", CALLERS, lambda n: (tensor(4), n)),
)  # fmt: skip


def curves(repository: Path, out: Path | None) -> None:
    """Writes a page with a table and a picture for each curve."""
    environments.install(REPORT)
    page = out or CACHE / "curves.md"
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="curves-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        servers = [Server(BY_NAME[peer], repository, FULL_MODELS, Path(name)) for peer in SERVERS]
        for server in servers:
            stack.callback(server.end)
        for server in servers:
            server.wait([tensor(4), RESNET_WORK()[0], SHORT_WORK()[0]]).hold()
        found = {curve.name: measured(curve, servers) for curve in CURVES}
    with tempfile.TemporaryDirectory(prefix="curves-", ignore_cleanup_errors=True) as name:
        models = {name_: memory_by_models(name_, MODELS, Path(name) / name_) for name_ in NAMES}
    facts = {curve: {peer: [asdict(p) for p in points] for peer, points in by.items()} for curve, by in found.items()}
    (folder / "results.json").write_text(json.dumps({"curves": facts, "models": models}, indent=1) + "\n")
    draw(found, models, folder)
    page.write_text("\n".join(lines(found, models, folder.name)) + "\n")
    print(f"written: {page}")


def measured(curve: Curve, servers: Sequence[Server]) -> dict[str, list[Point]]:
    """The servers take turns at every x."""
    points: dict[str, list[Point]] = {server.peer.name: [] for server in servers}
    for x in curve.xs:
        work, callers = curve.ask(x)
        print(f"{curve.name}: {x}", flush=True)
        for server in servers:
            with server.awake():
                points[server.peer.name].append(one(x, server, work, callers))
    return points


def one(x: float, server: Server, work: Workload, callers: int) -> Point:
    """A server that takes no connections has a point without replies."""
    try:
        return point(x, server.closed(work, callers, SECONDS))
    except Wrong as err:
        print(f"{server.peer.name} at {x:g}: {err}; its log is {server.log}", flush=True)
        return Point(x, 0.0, 0.0, 0.0, callers)


def point(x: float, found: Sample) -> Point:
    """Only what was answered rightly counts as throughput."""
    good = max(0, found.replies - found.errors)
    return Point(x, good / found.seconds, found.p50, found.p99, found.errors)


def lines(found: dict[str, dict[str, list[Point]]], models: dict[str, dict[int, float]], folder: str) -> Iterator[str]:
    """The page."""
    yield "# Cost against work\n"
    yield "Made by `python -m bench curves`. Closed loop; rates are of replies without an error.\n"
    for curve in CURVES:
        yield f"## {curve.title}\n"
        header = [curve.axis]
        for peer in found[curve.name]:
            header += [f"{TITLES[peer]}: /s", "p50 ms", "p99 ms", "errors"]
        yield from table(header, [_row(points) for points in zip(*found[curve.name].values(), strict=True)])
        yield f"![{curve.name}]({folder}/{curve.name}.svg)\n"
    yield "## Memory against the number of loaded models, MB\n"
    counts = next(iter(models.values()))
    yield from table(
        ["models", *(TITLES[name] for name in models)],
        [[str(n), *(f"{by[n]:.0f}" for by in models.values())] for n in counts],
    )
    yield f"![models]({folder}/models.svg)\n"


def _row(points: Sequence[Point]) -> list[str]:
    cells = [f"{points[0].x:g}"]
    for p in points:
        cells += [f"{p.rate:.1f}", f"{p.p50:.2f}", f"{p.p99:.2f}", str(p.errors or "")]
    return cells


def draw(found: dict[str, dict[str, list[Point]]], models: dict[str, dict[int, float]], folder: Path) -> None:
    """A picture for each curve."""
    charts = {curve.name: _panels(curve, found[curve.name]) for curve in CURVES}
    charts["models"] = {"MB": [[TITLES[n], list(by), list(by.values()), "loaded models"] for n, by in models.items()]}
    titles = {curve.name: curve.title for curve in CURVES} | {"models": "Memory"}
    subprocess.run(
        [str(environments.python_of(REPORT)), "-m", "bench.pictures", str(folder.resolve())], cwd=ROOT,
        input=json.dumps({"titles": titles, "charts": charts}), text=True, check=True, stdout=subprocess.DEVNULL,
        env=os.environ | {"MPLCONFIGDIR": str(CACHE / REPORT)},
    )  # fmt: skip


def _panels(curve: Curve, by: dict[str, list[Point]]) -> dict[str, list[list[object]]]:
    picks: dict[str, Callable[[Point], float]] = {
        "requests per second": lambda p: p.rate, "p50, ms": lambda p: p.p50, "p99, ms": lambda p: p.p99,
    }  # fmt: skip
    return {
        title: [[TITLES[peer], [p.x for p in ps], [pick(p) for p in ps], curve.axis] for peer, ps in by.items()]
        for title, pick in picks.items()
    }
