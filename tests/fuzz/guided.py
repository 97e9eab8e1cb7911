"""`python -m tests.fuzz.guided TARGET [libFuzzer's options] [folders]`: one target under atheris."""

import logging
import sys
import warnings
from functools import partial

import atheris

with atheris.instrument_imports(include=["serving", "clients", "PIL"], enable_loader_override=False):
    from tests.fuzz.targets import run

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    target = sys.argv.pop(1)
    atheris.Setup(sys.argv, partial(run, target))
    atheris.Fuzz()
