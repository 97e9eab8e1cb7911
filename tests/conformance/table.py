"""Observes every behaviour on both servers, and writes conformance.md."""

import html
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.conformance.behaviours import BUG, IMPROVEMENT, SAME, Observed, Row, Side
from tests.conformance.scenarios import SCENARIOS, Scenario
from tests.support.harness import ROOT

PAGE = ROOT / "tests/conformance/conformance.md"
AT_ONCE = 3  # scenarios that run in parallel
INTRODUCTION = """\
# Side by side with native Triton

Written by `python -m tests.conformance`; `tests/conformance` checks it. Each row was sent to
tritonserver 2.51.0 (24.10) with its own SageMaker endpoint, started as NVIDIA's SageMaker image
starts it, and to `serve`, with the same models and the same bytes. The sections are what users of
native Triton have today:

1 /ping and routes, 2 JSON invocations, 3 binary tensors, 4 generate, 5 errors, 6 multi-model
endpoints, 7 out of memory, 8 start-up of a single model, 9 start-up of several.

"same" compares the status, the body byte for byte and the Content-Type. For an error it compares
the status only, and checks that there is a text (`{"error"}`), because our errors have more fields
and often another text. `…binary+json` is short for `application/vnd.sagemaker-triton.binary+json`,
⏎ for the end of a line.

Two features are not in this version of tritonserver. Newer versions read
SAGEMAKER_TRITON_INFERENCE_TYPE and answer as `/v2/models/MODEL/generate` and `generate_stream`, so
those two routes were called. The start-up rules are a shell script in NVIDIA's image, so section 8
shows its rules and not observations.
"""


def observe() -> list[Observed]:
    with (
        tempfile.TemporaryDirectory(prefix="conformance-") as folder,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        longest_first = sorted(SCENARIOS, key=lambda scenario: scenario.seconds, reverse=True)
        runs = {s.name: pool.submit(_run, s, Path(folder) / s.name) for s in longest_first}
        return [row for scenario in SCENARIOS for row in runs[scenario.name].result()]


def _run(scenario: Scenario, folder: Path) -> list[Observed]:
    folder.mkdir()
    observed = []
    with scenario.started(folder) as sides, ThreadPoolExecutor(2) as pool:
        for part, both in zip(scenario.parts, sides, strict=True):
            for row in part.rows:
                observed.append(Observed(row, *pool.map(partial(_answer, row), both)))
    return observed


def _answer(row: Row, side: Side) -> str:
    answer = row.ask(side)
    if "hangs up" in answer or "the next request: 5" in answer:
        side.revive()
    return answer


def render(rows: Sequence[Observed]) -> str:
    counts = Counter(row.verdict for row in rows)
    counted = (
        f"{len(rows)} behaviours: {counts[SAME]} the same, {counts[IMPROVEMENT]} improved, "
        f"{counts[BUG]} bugs."
    )
    return "\n".join([INTRODUCTION, counted, *_sections(rows), ""])


def _sections(rows: Sequence[Observed]) -> Iterator[str]:
    for part in (part for scenario in SCENARIOS for part in scenario.parts):
        yield (
            f"\n## {part.title}\n\n| Section | Behaviour | Native | Ours | Verdict "
            "|\n|---|---|---|---|---|"
        )
        for row in rows:
            if any(row.behaviour is own for own in part.rows):
                yield _line(row)


def _line(row: Observed) -> str:
    verdict = (
        f"improvement: {row.behaviour.improvement}" if row.verdict == IMPROVEMENT else row.verdict
    )
    ours = "as native" if row.native == row.ours else _code(row.ours)
    cells = [
        row.behaviour.section,
        _plain(row.behaviour.title),
        _code(row.native),
        ours,
        _plain(verdict),
    ]
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    return f"<code>{_plain(text)}</code>"


def _plain(text: str) -> str:
    """Escape characters that have a meaning in a table."""
    return (
        html.escape(text, quote=False)
        .replace("|", "&#124;")
        .replace("*", "&#42;")
        .replace("_", "&#95;")
    )
