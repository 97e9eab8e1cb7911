"""Triton's quirks are in one file, which names what works around them and the tests that need it."""

import re

import pytest

from tests.test_architecture import ROOT

pytestmark = pytest.mark.unit

QUIRKS = ROOT / "serving/triton/quirks.py"


def test_every_file_that_the_quirks_name_exists() -> None:
    named = set(re.findall(r"[a-z_]+/[\w/]+\.(?:py|c)\b", QUIRKS.read_text()))
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists() and not (ROOT / "serving" / path).exists()] == []


def test_no_other_file_of_serving_knows_what_a_version_of_triton_does() -> None:
    files = [path for path in (ROOT / "serving").rglob("*.py") if path != QUIRKS]
    assert [path.name for path in files if re.search(r"24\.10|Triton 2\.", path.read_text())] == []
