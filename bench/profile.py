"""python -m bench profile: where a request's time goes, by stage and by process.

The stages are measured with a single caller: Flask's from Server-Timing, Triton's from its statistics. Processor time
is by program, from /proc, with `callers` callers.
"""

import json
import statistics
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.measure import stages
from bench.peer_table import BY_NAME
from bench.report import table
from bench.repository import CACHE
from bench.scenarios import FULL_MODELS, LONG_WORK, PIXELS, RESNET_WORK, SHORT_WORK, YOLO_WORK
from bench.servers import Server
from bench.workload import Workload, tensor

ASKED, SECONDS = 20, 2
FLASK = ("decode", "preprocess", "triton", "postprocess")
QUEUE = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True)
class Profile:
    """Mean milliseconds: `stages` with one caller (`total` and Flask's), `triton` inside Triton, `programs` the
    processor time per request with `callers` callers."""

    title: str
    callers: int
    rate: float
    stages: dict[str, float]
    triton: dict[str, float]
    programs: dict[str, float]


def rows() -> tuple[tuple[str, Workload, int], ...]:
    """(title, request, number of callers in the second part)."""
    return (
        ("ResNet-50, JPEG", RESNET_WORK()[0], 8),
        ("YOLOv5n, JPEG", YOLO_WORK()[0], 8),
        ("Embedding, 8 tokens", SHORT_WORK()[0], 16),
        ("Embedding, 128 tokens", LONG_WORK()[0], 16),
        ("4 floats, JSON", tensor(4), 8),
        ("4 floats, binary", tensor(4, True), 8),
        ("150,528 floats, JSON", tensor(PIXELS), 8),
        ("150,528 floats, binary", tensor(PIXELS, True), 8),
    )


def profile(repository: Path, out: Path | None) -> None:
    """Prints two tables, or writes them to a file."""
    with tempfile.TemporaryDirectory(prefix="profile-", ignore_cleanup_errors=True) as name:
        server = Server(BY_NAME["ours"], repository, FULL_MODELS, Path(name))
        try:
            server.wait([work for _, work, _ in rows()])
            found = [one(server, *row) for row in rows()]
        finally:
            server.end()
    text = "\n".join(lines(found))
    page = out or CACHE / "profile.md"
    page.write_text(text + "\n")
    print(f"{text}\nwritten: {page}")


def one(server: Server, title: str, work: Workload, callers: int) -> Profile:
    """Measures with one caller first, then with several."""
    before = triton_times(server, work.model)
    seen = [stages(server, work) for _ in range(ASKED)]
    after = triton_times(server, work.model)
    means = {name: statistics.fmean(s.get(name, 0.0) for s in seen) for name in ("total", *FLASK)}
    inside = {name: (after[name] - before[name]) / 1e6 / ASKED for name in QUEUE}
    loaded = server.closed(work, callers, SECONDS)
    return Profile(title, callers, loaded.rate, means, inside, loaded.parts)


def triton_times(server: Server, model: str) -> dict[str, int]:
    """Nanoseconds so far, for all requests to a model."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v2/models/{model}/stats", timeout=10) as reply:
        found = json.load(reply)["model_stats"][0]["inference_stats"]
    return {name: int(found[name]["ns"]) for name in QUEUE}


def lines(found: list[Profile]) -> Iterator[str]:
    """The two tables."""
    yield "## Profile: one caller, milliseconds\n"
    yield "`rest`: nginx, gunicorn, reading and writing HTTP and JSON; `gRPC`: the way to Triton and back.\n"
    header = ["Request", "total", *FLASK[:2], "gRPC", *QUEUE, FLASK[3], "rest"]
    yield from table(header, [_stage_row(each) for each in found])
    yield "## Profile: processor time per request, milliseconds\n"
    programs = sorted({name for each in found for name in each.programs})
    header = ["Request", "callers", "requests/s", *programs, "all"]
    yield from table(header, [_program_row(each, programs) for each in found])


def _stage_row(each: Profile) -> list[str]:
    seen, inside = each.stages, sum(each.triton.values())
    way = max(0.0, seen["triton"] - inside) if seen["triton"] else 0.0
    rest = seen["total"] - seen["decode"] - seen["preprocess"] - seen["postprocess"] - (seen["triton"] or inside)
    values = [seen["total"], seen["decode"], seen["preprocess"], way, *each.triton.values(), seen["postprocess"], rest]
    return [each.title, *(f"{value:.2f}" for value in values)]


def _program_row(each: Profile, programs: list[str]) -> list[str]:
    values = [each.programs.get(name, 0.0) for name in programs]
    return [each.title, str(each.callers), f"{each.rate:.0f}", *(f"{v:.2f}" for v in [*values, sum(values)])]
