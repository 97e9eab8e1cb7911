"""Keep torch out of the unit tests."""

import subprocess
import sys

import pytest

from tests.support.harness import ROOT

pytestmark = pytest.mark.unit


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
