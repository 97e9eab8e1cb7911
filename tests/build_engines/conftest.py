"""Defines the fixtures for the tests of build_engines."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test its own cache folder, so that this machine's cache is neither used nor
    changed."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("BUILD_ENGINES_CACHE", str(folder))
    return folder
