"""What `serve` gives its processes along."""

from pathlib import Path
from signal import SIGHUP

import pytest

from tests.supervisor.test_serve import table


def test_the_threads_of_numpy_and_pytorch_in_a_model_hardly_spin(tmp_path: Path) -> None:
    environment = table(tmp_path)["tritonserver"].environment
    assert (environment["OPENBLAS_THREAD_TIMEOUT"], environment["GOMP_SPINCOUNT"]) == ("16", "10000")


@pytest.mark.parametrize(("name", "value"), [("OPENBLAS_THREAD_TIMEOUT", "20"), ("GOMP_SPINCOUNT", "20")])
def test_the_user_s_own_value_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert table(tmp_path)["tritonserver"].environment[name] == value


def test_who_says_how_openmp_waits_has_said_how_long_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert "GOMP_SPINCOUNT" not in table(tmp_path)["tritonserver"].environment


def test_model_folders_are_looked_at_where_that_is_asked_for(tmp_path: Path) -> None:
    off, on = table(tmp_path), table(tmp_path, SERVE_RELOAD="true")
    assert "reload" not in off
    assert on["reload"].optional
    assert on["reload"].passed_on == (SIGHUP,)
    assert {"--load-model=*", f"--model-repository={tmp_path}/live/served"} <= {*on["tritonserver"].command}
