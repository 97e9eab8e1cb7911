"""Runs Python with the packages in .venv/callers, and no others: clients of other servers' APIs."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.harness import PATIENCE

PACKAGES = Path(sys.prefix) / "callers"  # `make dev` installs them here
SETTINGS = {
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # it is 1 after a test has loaded a tokenizer in this process; huggingface_hub would then make
    # no calls
    "HF_HUB_OFFLINE": "0",
}


def run_caller(*arguments: str) -> str:
    """Run Python with these arguments, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-S", *arguments],
        env=os.environ | SETTINGS | {"PYTHONPATH": str(PACKAGES)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
