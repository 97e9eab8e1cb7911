"""Tests the survey and the check as processes with a time limit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from serving.repository import run_preparation
from serving.repository.layout import LayoutError
from serving.settings.settings import Settings
from tests.repository.test_model_config import WHOLE, write

pytestmark = pytest.mark.unit


def of(folder: Path) -> Settings:
    return replace(Settings(), model_repositories=(folder,), load_models=("net",), device="cpu")


@pytest.mark.parametrize(
    ("run", "what"),
    [(run_preparation.survey, "the survey"), (run_preparation.mistakes, "the check")],
)
def test_end_a_process_that_takes_too_long(
    tmp_path: Path, run: Callable[[Settings], object], what: str
) -> None:
    with pytest.raises(LayoutError, match=f"^{what} .*SERVE_START_TIMEOUT=0.01 s"):
        run(replace(of(tmp_path), start_timeout=0.01))


def test_return_the_survey_and_each_mistake_of_the_check(tmp_path: Path) -> None:
    write(tmp_path / "net", WHOLE)
    code = "import os\nos.system('echo made')\nraise RuntimeError('no client')\n"
    (tmp_path / "net/client.py").write_text(code)
    assert run_preparation.survey(of(tmp_path)).models == ["net"]
    (line,) = run_preparation.mistakes(of(tmp_path))
    assert line.startswith("net: client.py: the client cannot be made: RuntimeError: no client")


def test_report_a_model_once_that_cannot_be_read_or_staged(tmp_path: Path) -> None:
    write(tmp_path / "net", WHOLE)
    write(tmp_path / "sound", WHOLE)
    (tmp_path / "net/config.pbtxt").write_text("nonsense {")
    settings = replace(of(tmp_path), load_models=("net", "sound"))
    lines = run_preparation.mistakes(settings)
    assert [line for line in lines if line.startswith("net: ")] == lines[:1]


def test_raise_an_error_for_a_mistake_in_the_layout(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="there is no model in"):
        run_preparation.survey(of(tmp_path))
