"""`tune`: measures candidates on this machine and writes the best into the configuration."""

import argparse

from build_engines.measurement.timing import threads
from build_engines.model_folder.stored import open_model
from build_engines.tuning import choice, measure


def run(parsed: argparse.Namespace) -> int:
    """Prints the table and the choice."""
    stored = open_model(parsed.model, parsed.repository.resolve())
    measure.check(stored)
    limit = measure.in_process(stored)
    found = measure.measure(stored, choice.candidates(threads(), measure.engines(stored)), parsed.callers)
    for line in choice.table(found, limit, parsed.callers):
        print(line)
    chosen = choice.choose(found)
    print(f"best here: {chosen}")
    if parsed.dry_run:
        print(f"{stored.config_file} is left as it is (--dry-run)")
        return 0
    before = choice.write(stored, chosen)
    print(f"written to {stored.config_file}; undo: mv {before} {stored.config_file}")
    return 0
