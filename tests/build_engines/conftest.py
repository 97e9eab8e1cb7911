"""What the tests of build_engines share."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own: nothing of this machine's is used or changed."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("BUILD_ENGINES_CACHE", str(folder))
    return folder
