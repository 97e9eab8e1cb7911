"""Fixtures of the tests of build_engines."""

from pathlib import Path

import pytest

from build_engines import comparison


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test its own cache, so that this machine's is neither used nor changed."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("BUILD_ENGINES_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "SECONDS", 0.1)
