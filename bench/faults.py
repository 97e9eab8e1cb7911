"""Measure what callers see of each fault, and for how long (docs/reliability.md). Requires root.

`python -m bench.faults` causes the faults of tests/faults one after the other, under constant load.
`python -m bench.faults --only nginx` causes only those whose names contain the word.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from tests.faults import trial
from tests.faults.faults import FAULTS, Fault
from tests.faults.load import RIGHT

DEADLINE = 30.0  # seconds


def trials(faults: Sequence[Fault]) -> Iterator[trial.Trial]:
    """Cause the faults, and yield what callers saw. Start a server for each mode that the faults
    need."""
    for mode, group in groupby(faults, key=lambda fault: fault.mode):
        with (
            tempfile.TemporaryDirectory(prefix="faults-") as folder,
            trial.under_load(Path(folder), mode, DEADLINE, pause=0.0) as (server, callers),
        ):
            for fault in group:
                yield trial.run(fault, server, callers)


def row(outcome: trial.Trial) -> str:
    errors = {name: count for name, count in outcome.verdicts.items() if name != RIGHT}
    seen = ", ".join(f"{count} {name}" for name, count in errors.items()) or "none"
    mistakes = "".join(f"; WRONG: {mistake}" for mistake in outcome.mistakes)
    right = outcome.verdicts[RIGHT]
    return f"| {outcome.fault.name} | {right} | {seen}{mistakes} | {outcome.seconds:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="a word in the names of the faults")
    only = parser.parse_args().only
    print("| Fault | Right answers | Errors that callers saw | Seconds to recovery |")
    print("|---|---|---|---|")
    for outcome in trials([fault for fault in FAULTS if only in fault.name]):
        print(row(outcome), flush=True)


if __name__ == "__main__":
    main()
