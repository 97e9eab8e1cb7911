"""python -m bench curves: cost against work, ours and Triton's own: body size, batch, callers, models."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import environments
from bench.environments import REPORT
from bench.load import Sample, Wrong
from bench.multimodel import NAMES, memory_by_models
from bench.peer_table import BY_NAME
from bench.report import TITLES, table
from bench.repository import CACHE, ROOT, Unprepared
from bench.scenarios import FULL_MODELS, RESNET_WORK, SHORT_WORK
from bench.servers import Server
from bench.workload import Workload, images, tensor

SECONDS = 2
SERVERS = ("ours", "triton")
BYTES = tuple(1000 * factor for factor in (1, 4, 16, 64, 256, 1000, 4000, 16000, 24000))
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CALLERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MODELS = (1, 8, 32, 128, 256)
MODELS_CURVE = "models"
Points = dict[str, list[dict[str, Any]]]  # a Point's fields, by server


@dataclass(frozen=True)
class Point:
    """One measurement. A 503 of a full server counts as an error, not as a reply."""

    x: float
    rate: float
    p50: float
    p99: float
    errors: int


@dataclass(frozen=True)
class Curve:
    """The request and the number of callers for each x."""

    name: str
    title: str
    axis: str
    xs: Sequence[int]
    ask: Callable[[int], tuple[Workload, int]]
    drive: Callable[[Server, Workload, int, int], Sample] = Server.closed


CURVES = (
    Curve("size-binary", "FP32 tensor as bytes", "bytes", BYTES, lambda n: (tensor(n // 4, True), 4)),
    Curve("size-json", "FP32 tensor as JSON", "bytes", BYTES, lambda n: (tensor(max(1, n // 20)), 4)),
    Curve(
        "batch",
        "ResNet-50, images in one request",
        "images",
        BATCHES,
        lambda n: (images("resnet50", n, (320, 240)), 1),
        drive=Server.patient,
    ),
    Curve(
        "callers-image", "ResNet-50, callers", "callers", CALLERS, lambda n: (RESNET_WORK()[0], n), drive=Server.patient
    ),
    Curve("callers-text", "Embedding of 8 tokens, callers", "callers", CALLERS, lambda n: (SHORT_WORK()[0], n)),
    Curve("callers-tensor", "4 floats, JSON, callers", "callers", CALLERS, lambda n: (tensor(4), n)),
)


NAMED = (*(curve.name for curve in CURVES), MODELS_CURVE)


def curves(repository: Path, out: Path | None, chosen: Sequence[str] = NAMED) -> None:
    """Writes a page with a table and a picture for each curve; keeps the last figures of curves that are not chosen.
    Raises Unprepared for one that is none."""
    if unknown := set(chosen) - set(NAMED):
        raise Unprepared(f"no curve is called {', '.join(sorted(unknown))}; the curves are {', '.join(NAMED)}")
    environments.install(REPORT)
    page = out or CACHE / "curves.md"
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    with tempfile.TemporaryDirectory(prefix="curves-", ignore_cleanup_errors=True) as name:
        if MODELS_CURVE in chosen:
            results[MODELS_CURVE] = {peer: memory_by_models(peer, MODELS, Path(name) / peer) for peer in NAMES}
        if asked := [curve for curve in CURVES if curve.name in chosen]:
            results |= _run(asked, repository, Path(name))
    file.write_text(json.dumps(results, indent=1) + "\n")
    shown = json.loads(file.read_text())
    draw(shown, folder)
    page.write_text("\n".join(lines(shown, folder.name)) + "\n")
    print(f"written: {page}")


def _run(asked: Sequence[Curve], repository: Path, scratch: Path) -> dict[str, Points]:
    with ExitStack() as stack:
        servers = [Server(BY_NAME[peer], repository, FULL_MODELS, scratch) for peer in SERVERS]
        for server in servers:
            stack.callback(server.end)
        for server in servers:
            server.wait([tensor(4), RESNET_WORK()[0], SHORT_WORK()[0]]).hold()
        return {curve.name: measured(curve, servers) for curve in asked}


def measured(curve: Curve, servers: Sequence[Server]) -> Points:
    """The points of each server; the servers take turns at every x."""
    points: Points = {server.peer.name: [] for server in servers}
    for x in curve.xs:
        work, callers = curve.ask(x)
        print(f"{curve.name}: {x}", flush=True)
        for server in servers:
            with server.awake():
                drive = partial(curve.drive, server, work, callers, SECONDS)
                points[server.peer.name].append(asdict(one(x, server, drive)))
    return points


def one(x: float, server: Server, drive: Callable[[], Sample]) -> Point:
    """One point; without replies when the server accepts no connections."""
    try:
        return point(x, drive())
    except Wrong as err:
        print(f"{server.peer.name} at {x:g}: {err}; its log is {server.log}", flush=True)
        return Point(x, 0.0, 0.0, 0.0, 0)


def point(x: float, found: Sample) -> Point:
    """The point of a sample; only successful replies count as throughput."""
    good = max(0, found.replies - found.errors)
    return Point(x, good / found.seconds, found.p50, found.p99, found.errors)


def lines(found: Mapping[str, Any], folder: str) -> Iterator[str]:
    """The page."""
    yield "# Cost against work\n"
    yield "Made by `python -m bench curves`. Closed loop; rates are of replies without an error."
    yield "[README.md](README.md#cost-against-work) says what the curves show.\n"
    for curve in _found(found):
        yield f"## {curve.title}\n"
        header = [curve.axis]
        for peer in found[curve.name]:
            header += [f"{TITLES[peer]}: /s", "p50 ms", "p99 ms", "errors"]
        yield from table(header, [_row(points) for points in zip(*found[curve.name].values(), strict=True)])
        yield f"![{curve.name}]({folder}/{curve.name}.svg)\n"
    if models := found.get(MODELS_CURVE):
        yield "## Memory against the number of loaded models, MB\n"
        counts = next(iter(models.values()))
        rows = [[n, *(f"{by[n]:.0f}" for by in models.values())] for n in counts]
        yield from table(["models", *(TITLES[name] for name in models)], rows)
        yield f"![models]({folder}/models.svg)\n"


def _found(found: Mapping[str, Any]) -> list[Curve]:
    return [curve for curve in CURVES if curve.name in found]


def _row(points: Sequence[Mapping[str, float]]) -> list[str]:
    cells = [f"{points[0]['x']:g}"]
    for p in points:
        cells += [f"{p['rate']:.1f}", f"{p['p50']:.2f}", f"{p['p99']:.2f}", str(p["errors"] or "")]
    return cells


def draw(found: Mapping[str, Any], folder: Path) -> None:
    """A picture for each curve."""
    charts: dict[str, Any] = {curve.name: _panels(curve, found[curve.name]) for curve in _found(found)}
    if models := found.get(MODELS_CURVE):
        rows = [[TITLES[name], list(map(int, by)), list(by.values()), "loaded models"] for name, by in models.items()]
        charts[MODELS_CURVE] = {"MB": rows}
    titles = {curve.name: curve.title for curve in CURVES} | {MODELS_CURVE: "Memory"}
    subprocess.run(
        [str(environments.python_of(REPORT)), "-m", "bench.pictures", str(folder.resolve())],
        cwd=ROOT,
        input=json.dumps({"titles": titles, "charts": charts}),
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"MPLCONFIGDIR": str(CACHE / REPORT)},
    )


def _panels(curve: Curve, by: Points) -> dict[str, list[list[object]]]:
    picks = {"requests per second": "rate", "p50, ms": "p50", "p99, ms": "p99"}
    return {
        title: [[TITLES[peer], [p["x"] for p in ps], [p[pick] for p in ps], curve.axis] for peer, ps in by.items()]
        for title, pick in picks.items()
    }
