"""What `serve` gives its processes along."""

from pathlib import Path
from signal import SIGHUP

import pytest

from tests.supervisor.test_serve import table


def test_numpys_threads_of_a_model_hardly_spin(tmp_path: Path) -> None:
    assert table(tmp_path)["tritonserver"].environment["OPENBLAS_THREAD_TIMEOUT"] == "16"


def test_the_user_s_own_value_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "20")
    assert table(tmp_path)["tritonserver"].environment["OPENBLAS_THREAD_TIMEOUT"] == "20"


def test_model_folders_are_looked_at_where_that_is_asked_for(tmp_path: Path) -> None:
    off, on = table(tmp_path), table(tmp_path, SERVE_RELOAD="true")
    assert "reload" not in off
    assert on["reload"].optional
    assert on["reload"].passed_on == (SIGHUP,)
    assert {"--load-model=*", f"--model-repository={tmp_path}/live/served"} <= {*on["tritonserver"].command}
