"""What scripts/image/build.py asks of an engine: a stand-in says what it was called with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

ENGINE = """#!/bin/sh
case "$1" in
info) ;;
inspect) test -n "$KNOWN" && echo "nvcr.io/nvidia/tritonserver@$KNOWN" ;;
build) printf '%s\\n' "$@" ;;
esac
"""
KNOWN, GIVEN = (f"sha256:{digit * 64}" for digit in "12")
TRITON = "nvcr.io/nvidia/tritonserver:26.05-py3"


@pytest.mark.parametrize(
    ("given", "known", "base", "digest"),
    [("", KNOWN, TRITON, KNOWN), ("", "", TRITON, ""), (f"triton@{GIVEN}", KNOWN, "triton", GIVEN)],
)
def test_labels_say_what_it_is_made_from_with_the_digest_where_that_is_known(
    tmp_path: Path, given: str, known: str, base: str, digest: str
) -> None:
    engine = tmp_path / "podman"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ENGINE": "podman", "KNOWN": known}
    command = [sys.executable, str(ROOT / "scripts/image/build.py"), "gpu"]
    done = subprocess.run(command, env=environ | {"TRITON_IMAGE": given}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    labels = [f"--label=org.opencontainers.image.base.name={base}"]
    labels += [f"--label=org.opencontainers.image.base.digest={digest}"] if digest else []
    assert [word for word in told if word.startswith("--label=")] == labels
    assert f"TRITON_IMAGE={given or TRITON}" in told
    assert "triton-multi-model:gpu" in told
