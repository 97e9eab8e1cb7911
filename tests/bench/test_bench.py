"""The benchmark runs, compares answers before it measures, and shows a server that fails instead of
its figures."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import gist, row
from bench.load import Round
from tests.support.harness import PATIENCE, ROOT

pytestmark = pytest.mark.stack


def test_run_two_scenarios_against_the_bare_server_and_triton(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    scenarios, servers = ["photo, 1", "4 floats"], ["ours", "bare", "triton"]
    options = [
        "--scenarios",
        *scenarios,
        "--servers",
        *servers,
        "--rounds",
        "1",
        "--seconds",
        "1",
        "--out",
        str(page),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "bench", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    photo, floats, _memory = page.read_text().split("### ")[1:]
    assert [line.split()[1] for line in photo.splitlines()[4:] if line] == ["ours", "bare", "limit"]
    assert [line.split()[1] for line in floats.splitlines()[4:] if line] == [
        "ours",
        "bare",
        "triton",
    ]
    assert "not 200" not in page.read_text()


def test_print_no_figures_for_a_row_with_a_failed_answer() -> None:
    failed, good = Round(100.0, 1.0, 2.0, errors=3), Round(50.0, 1.0, 2.0, errors=0)
    assert "100.0" not in row("peer", [failed], [good])
    assert "| 0.50 " in row("peer", [good], [Round(100.0, 1.0, 2.0, 0)])


def test_compare_answers_by_best_label_or_first_numbers() -> None:
    assert gist({"predictions": [{"classes": [{"label": "cup"}, {"label": "mug"}]}]}) == "cup"
    assert gist({"embedding": [0.123, 0.456, 0.7, 0.8]}) == [0.12, 0.46, 0.7]
    assert gist({"predictions": []}) is None
