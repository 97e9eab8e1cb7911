"""Measures docs/reliability.md: takes root.

python -m tests.faults [--minutes 10] [--seed 1]     each fault alone, then all in random order
python -m tests.faults --soak 60                     an hour at 70 %
"""

import argparse
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from tests.faults import page, trial
from tests.faults.calls import learn, make_models
from tests.faults.faults import FAULTS, Confined, Fault
from tests.faults.load import Callers
from tests.faults.soak import soak
from tests.faults.trial import Trial

DEADLINE = 60.0  # SERVE_REQUEST_TIMEOUT, its default
CALLERS = 6
BORNE = 4  # deaths of one process in a minute; the sixth ends `serve`


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of faults in random order")
    parser.add_argument("--seed", type=int, default=1, help="of that order")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="no faults, but an even load for so long")
    options = parser.parse_args()
    if options.soak:
        text = soak(options.soak)
        print(text)
        page.put("soak", f"{page.measured()}\n\n{text}")
        return 0
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        mistakes = faults(Path(folder), options.minutes, options.seed)
    print("\n".join(mistakes) or "every request got one answer, right or honest, in time")
    return 1 if mistakes else 0


def faults(folder: Path, minutes: float, seed: int) -> list[str]:
    """Writes the page; what must not be, as lines."""
    (folder / "models").mkdir()
    make_models(folder / "models")
    server = Confined(folder, folder / "models", SERVE_WORKERS="2")
    server.wait_ready()
    try:
        with Callers(server.url, learn(server), CALLERS, DEADLINE) as callers:
            alone = [shown(trial.run(fault, server, callers)) for fault in FAULTS]
            mixed = [shown(trial.run(fault, server, callers)) for fault in in_random_order(minutes, seed)]
        code = server.stop()
    finally:
        server.kill_all()
    parts = [page.measured(), page.table(alone), *([page.summary(mixed, minutes, seed)] if mixed else [])]
    page.put("faults", "\n\n".join(parts))
    found = [f"{each.fault.name}: {mistake}" for each in (*alone, *mixed) for mistake in each.mistakes]
    found += [f"{each} was answered twice" for each in trial.logged_twice(server.log, "fault")]
    return found + ([f"the stop's exit code was {code}"] if code else [])


def shown(found: Trial) -> Trial:
    print(f"{found.fault.name}: {found.seconds:.1f} s, {dict(found.verdicts)} {found.mistakes or ''}", flush=True)
    return found


def in_random_order(minutes: float, seed: int) -> Iterator[Fault]:
    """Until the time is over; of one process no more deaths in a minute than are borne."""
    order, deaths = random.Random(seed), deque[tuple[float, str]]()
    end = time.monotonic() + 60 * minutes
    while (now := time.monotonic()) < end:
        while deaths and deaths[0][0] < now - 60:
            deaths.popleft()
        fault = order.choice(FAULTS)
        if not fault.of or [name for _, name in deaths].count(fault.of) < BORNE:
            deaths.append((now, fault.of))
            yield fault


if __name__ == "__main__":
    sys.exit(main())
