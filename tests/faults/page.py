"""docs/reliability.md: the parts that are measured, between two comments each."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from tests.faults.load import CUT, LATE, REFUSED, RIGHT, WRONG
from tests.faults.trial import Trial
from tests.support.harness import ROOT

PAGE = ROOT / "docs/reliability.md"


def put(part: str, text: str) -> None:
    """Replaces what stands between `<!-- PART -->` and `<!-- end of PART -->`."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(f"<!-- {part} -->\n")
    _, _, after = rest.partition(f"<!-- end of {part} -->")
    PAGE.write_text(f"{before}<!-- {part} -->\n{text}\n<!-- end of {part} -->{after}", encoding="utf-8")


def measured() -> str:
    return f"Measured on {time.strftime('%Y-%m-%d')} on a machine of {os.cpu_count()} processors that others used too."


def table(trials: Iterable[Trial]) -> str:
    lines = ["| Fault | What callers saw | Seconds until good answers | Connections that ended | Wrong or late |"]
    lines.append("|---|---|---|---|---|")
    return "\n".join(lines + [_row(trial) for trial in trials])


def _row(trial: Trial) -> str:
    seen = trial.verdicts
    seconds = f"{trial.seconds:.1f}" if trial.seconds else "no other answers"
    return f"| {trial.fault.name} | {errors(seen)} | {seconds} | {ended(seen)} | {bad(seen)} |"


def errors(seen: Counter[str]) -> str:
    found = [f"{count} × {verdict}" for verdict, count in sorted(seen.items()) if verdict[0].isdigit()]
    return ", ".join([f"{seen[RIGHT]} right", *found])


def ended(seen: Counter[str]) -> str:
    return " and ".join(f"{seen[verdict]} {verdict}" for verdict in (CUT, REFUSED) if seen[verdict]) or "0"


def bad(seen: Counter[str]) -> int:
    return sum(count for verdict, count in seen.items() if verdict == LATE or verdict.startswith(WRONG))


def summary(trials: Sequence[Trial], minutes: float, seed: int) -> str:
    """What the faults in random order gave."""
    seen = sum((trial.verdicts for trial in trials), Counter())
    slow = max(trials, key=lambda trial: trial.seconds)
    return (
        f"In random order for {minutes:g} minutes (seed {seed}): {len(trials)} faults, {sum(seen.values())} requests; "
        f"{errors(seen)}; ended: {ended(seen)}; wrong or late: {bad(seen)}. The longest time until good answers was "
        f"{slow.seconds:.1f} s ({slow.fault.name})."
    )
