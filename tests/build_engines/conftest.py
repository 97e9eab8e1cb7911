"""What the tests of build_engines share."""

from pathlib import Path

import pytest

from build_engines import runners


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own: nothing of this machine's is used or changed."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("BUILD_ENGINES_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are timed for a moment only: what is tested is that they are timed."""
    monkeypatch.setattr(runners, "SECONDS", 0.1)
