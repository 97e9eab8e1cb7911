"""Tests that unit tests do not import torch, that no test serves a developer's own models, and that
long files run first."""

import re
import subprocess
import sys

import pytest

from tests.support.harness import ROOT

pytestmark = pytest.mark.full


def test_import_no_torch_in_files_marked_unit() -> None:
    files = [
        file
        for file in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark.unit" in file.read_text()
    ]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    code = f"import {', '.join(names)}, sys; sys.exit('torch' in sys.modules)"
    assert len(names) > 50
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_serve_only_named_models_of_the_checkout() -> None:
    """The checkout's model_repository may contain more than the bundled models."""
    whole = re.compile("ROOT / " + r'"model_repository"(?! /)')
    files = [file for file in (ROOT / "tests").rglob("*.py") if file.name != "__main__.py"]
    assert len(files) > 100
    assert [str(file) for file in files if whole.search(file.read_text())] == []


def test_run_the_unit_tests_last(request: pytest.FixtureRequest) -> None:
    is_unit = [item.get_closest_marker("unit") is not None for item in request.session.items]
    assert is_unit == sorted(is_unit)
