"""Results as markdown, JSON and pictures."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import environments, machine
from bench.environments import REPORT
from bench.figures import MEGABYTE, TARGETS, Figure, figure
from bench.measure import Results
from bench.peer_table import BY_NAME
from bench.repository import CACHE, ROOT
from bench.scenarios import BY_NAME as SCENARIOS
from bench.scenarios import Scope

README = ROOT / "docs/benchmarks/README.md"
TITLES = {"limit": "the limit", **{name: peer.title for name, peer in BY_NAME.items()}}
INTRODUCTION = """\
# Benchmarks on {kind}

Made by `{command}` on {date}. [docs/benchmarks]({readme}) says how it is measured.

{rounds} rounds of {seconds} s of every scenario, the servers taking turns (A B C A B C), each held still while
another is measured; medians, and the lowest and highest round in brackets. Closed loop by wrk unless said otherwise,
on the same processors as the servers. Every reply's status counts, and before and after the rounds of a scenario each
server's answer is compared with that of the same engine in process. **Only ratios within one run mean something.**
"""
LIMIT = """\
**The limit** is the faster of ONNX Runtime and OpenVINO in one process, with the same preprocessing and no server, at
the best of its settings (threads of a run, runs at once, spinning), searched for each scenario.

**This project** took {choice}. An INT8 file names its engine.
"""


def write(results: Results, scope: Scope, command: str, page: Path) -> None:
    """Writes the page, and beside it a folder with results.json and the pictures."""
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "machine": machine.facts(),
        "versions": machine.versions(),
        "results": asdict(results),
        "targets": targets(results),
    }
    (folder / "results.json").write_text(json.dumps(facts, indent=1) + "\n")
    names = draw(results, folder)
    page.write_text("\n".join(lines(results, scope, command, page, names)) + "\n")


def targets(results: Results) -> list[dict[str, Any]]:
    """Each with its bound, what was measured and the verdict."""
    rows = []
    for target in TARGETS:
        value = target.measure(results)
        sign = "at most" if target.at_most else "at least"
        verdict = target.verdict(value, machine.instruction_sets())
        bound = f"{sign} {target.bound:g} {target.unit}".strip()
        rows.append({"target": target.text, "bound": bound, "value": value, "verdict": verdict})
    return rows


def lines(results: Results, scope: Scope, command: str, page: Path, pictures: list[str]) -> Iterator[str]:
    """The page."""
    folder, date = page.with_suffix("").name, datetime.now(UTC).strftime("%Y-%m-%d")
    yield INTRODUCTION.format(
        kind=machine.kind(),
        command=command,
        date=date,
        readme=os.path.relpath(README, page.absolute().parent),
        rounds=scope.rounds,
        seconds=scope.seconds,
    )
    yield LIMIT.format(choice=results.choice)
    yield from table(["Machine", ""], [[key, value] for key, value in machine.facts().items()])
    yield from table(["Version", ""], [[key, value] for key, value in machine.versions().items()])
    yield "## Targets\n"
    rows = [[r["target"], r["bound"], _number(r["value"]), r["verdict"]] for r in targets(results)]
    yield from table(["Target", "Bound", "Measured", ""], rows)
    yield "## Servers\n"
    rows = [[p.title, p.settings, results.missing.get(name, "")] for name, p in BY_NAME.items() if name in scope.peers]
    yield from table(["Server", "Settings", "Why it has no figures"], rows)
    for name in (scenario.name for scenario in scope.scenarios):
        yield f"## {SCENARIOS[name].title}\n"
        yield from scenario_table(name, results.samples.get(name, {}), results)
        if name in pictures:
            yield f"![{name}]({folder}/{name}.svg)\n"
    yield from once(results, folder, pictures)


def scenario_table(name: str, found: dict[str, Any], results: Results) -> Iterator[str]:
    """A table with a row for each server, the fastest first."""
    figures = {peer: figure(samples) for peer, samples in found.items()}
    base = next((peer for peer in ("limit", "sagemaker", "ours", *figures) if peer in figures), "ours")
    header = ["Server", "Engine", "Requests/s", f"/ {TITLES[base]}", "p50 ms", "p99 ms", "CPU ms/request", "Errors"]
    ran = results.engines.get(name, {})
    rows = [
        row(peer, ran.get(peer, ""), f, figures[base])
        for peer, f in sorted(figures.items(), key=lambda item: -item[1].rate)
    ]
    yield from table(header, rows)
    if setting := results.settings.get(name):
        yield f"The limit's best setting: {setting}.\n"
    light = {peer: [s.light_p99 for s in samples] for peer, samples in found.items() if samples[0].light_p99}
    if light:
        words = (f"{TITLES[peer]} {percentiles(values)}" for peer, values in light.items())
        yield f"p99 of the light model, ms: {', '.join(words)}.\n"
    for key, reason in results.wrong.items():
        if key.startswith(f"{name}, "):
            yield f"No figure counts: {reason}\n"


def percentiles(values: list[float]) -> str:
    return " / ".join(f"{value:.0f}" for value in sorted(values))


def row(peer: str, engine: str, found: Figure, reference: Figure) -> list[str]:
    low, high = found.rate_range
    share = found.rate / reference.rate if reference.rate else 0.0
    cpu = f"{found.cpu_ms:.2f}" if found.cpu_ms else ""
    return [
        TITLES[peer],
        engine,
        f"{found.rate:.1f} ({low:.1f}-{high:.1f})",
        f"{share:.2f}",
        f"{found.p50:.2f}",
        f"{found.p99:.2f}",
        cpu,
        str(found.errors or ""),
    ]


def once(results: Results, folder: str, pictures: list[str]) -> Iterator[str]:
    """The tables of what is measured once: start, memory, multi-model."""
    yield "## Start and memory\n"
    yield "Start and idle memory (PSS of all processes) with the three bundled models. In the first start of each"
    yield "OpenVINO compiles and files are read from the disk; the other columns are the best of all starts. After the"
    yield "load: with ResNet-50, YOLOv5n and short texts.\n"
    header = ["Server", "First start, s", "Ready, s", "Each model has answered, s", "Idle, MB", "After the load, MB"]
    yield from table(header, [_start_row(name, results) for name in results.starts])
    for name in ("start", "memory"):
        if name in pictures:
            yield f"![{name}]({folder}/{name}.svg)\n"
    if results.multi_model:
        yield "## Multi-model archives, called by a Zipf distribution\n"
        yield "Tiny models of Triton's python backend, 4 callers; a model is loaded at its first call.\n"
        yield from table(
            [
                "Server",
                "Calls/s with the loads",
                "Wrong",
                "Load, s",
                "Unload, s",
                "p99 ms alone",
                "p99 ms while 4 load",
                "MB per model",
            ],
            [_multi_row(name, asdict(found)) for name, found in results.multi_model.items()],
        )


def _start_row(name: str, results: Results) -> list[str]:
    starts = results.starts[name]
    ready, answered = [s.ready for s in starts], [s.answered for s in starts]
    memory = [s.memory / MEGABYTE for s in starts]
    loaded = f"{results.loaded[name] / MEGABYTE:.0f}" if name in results.loaded else ""
    times = [ready[0], min(ready), min(answered)]
    return [TITLES[name], *(f"{seconds:.1f}" for seconds in times), f"{min(memory):.0f}", loaded]


def _multi_row(name: str, found: dict[str, float]) -> list[str]:
    return [
        TITLES[name],
        f"{found['calls_per_second']:.1f}",
        str(found["wrong"]),
        f"{found['load']:.2f}",
        f"{found['unload']:.2f}",
        f"{found['quiet_p99']:.1f}",
        f"{found['loading_p99']:.1f}",
        f"{found['per_model'] / MEGABYTE:.1f}",
    ]


def table(header: list[str], rows: list[list[str]]) -> Iterator[str]:
    """A table in Markdown."""
    yield f"| {' | '.join(header)} |"
    yield "|---" * len(header) + "|"
    for cells in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
    yield ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def draw(results: Results, folder: Path) -> list[str]:
    """Draws the pictures and returns their names; none without matplotlib (`python -m bench` installs it)."""
    if not environments.is_current(REPORT):
        return []
    charts = {name: _bars(found) for name, found in results.samples.items()} | _once_bars(results)
    titles = {name: SCENARIOS[name].title for name in results.samples}
    plan = {"titles": titles | {"start": "Start", "memory": "Memory"}, "charts": charts}
    done = subprocess.run(
        [str(environments.python_of(REPORT)), "-m", "bench.pictures", str(folder.resolve())],
        cwd=ROOT,
        input=json.dumps(plan),
        text=True,
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"MPLCONFIGDIR": str(CACHE / REPORT)},
    )
    return done.stdout.split()


def _bars(found: dict[str, Any]) -> dict[str, list[list[Any]]]:
    """{panel: [[server, value, lowest, highest], …]}."""
    figures = [(TITLES[peer], figure(samples)) for peer, samples in found.items()]
    return {
        "requests per second": [[title, f.rate, *f.rate_range] for title, f in figures],
        "p50, ms": [[title, f.p50, *f.p50_range] for title, f in figures],
        "p99, ms": [[title, f.p99, *f.p99_range] for title, f in figures],
    }


def _once_bars(results: Results) -> dict[str, dict[str, list[list[Any]]]]:
    starts = [(TITLES[name], found) for name, found in results.starts.items()]
    ready = [[title, *_middle([s.answered for s in found])] for title, found in starts]
    idle = [[title, *_middle([s.memory / MEGABYTE for s in found])] for title, found in starts]
    loaded = [[TITLES[name], *[size / MEGABYTE] * 3] for name, size in results.loaded.items()]
    return {
        "start": {"seconds until each model has answered": ready},
        "memory": {"idle, MB": idle, "after the load, MB": loaded},
    }


def _middle(values: list[float]) -> list[float]:
    return [sorted(values)[len(values) // 2], min(values), max(values)]
