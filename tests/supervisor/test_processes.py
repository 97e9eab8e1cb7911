"""What `serve` gives its processes along."""

from pathlib import Path

import pytest

from tests.supervisor.test_serve import table


def test_numpys_threads_of_a_model_hardly_spin(tmp_path: Path) -> None:
    assert table(tmp_path)["tritonserver"].environment["OPENBLAS_THREAD_TIMEOUT"] == "16"


def test_the_user_s_own_value_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "20")
    assert table(tmp_path)["tritonserver"].environment["OPENBLAS_THREAD_TIMEOUT"] == "20"
