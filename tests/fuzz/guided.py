"""`python -m tests.fuzz.guided TARGET [libFuzzer's options] [folders]`: one target under
atheris."""

import logging
import shlex
import sys
import time
import warnings
from functools import partial

import atheris

with atheris.instrument_imports(
    include=["serving", "clients", "PIL"], enable_loader_override=False
):
    from tests.fuzz.targets import run

from tests.fuzz.__main__ import DEADLINE


def timed(target: str, data: bytes) -> None:
    begun = time.process_time()
    run(target, data)
    if (seconds := time.process_time() - begun) > DEADLINE:
        raise AssertionError(f"it took {seconds:.1f} s of processor time")


def fuzz(target: str, *arguments: str) -> None:
    """Fuzz with libFuzzer, which ends this process. The first word is the command with which
    libFuzzer restarts itself to merge a corpus."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    again = shlex.join([sys.executable, "-m", "tests.fuzz.guided", target])
    atheris.Setup([again, *arguments], partial(timed, target))
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz(*sys.argv[1:])
