"""How many requests fit into a limit of open files."""

import subprocess
import sys
from dataclasses import replace

import pytest

from serving.settings.setting import SettingsError
from serving.settings.table import Settings
from serving.supervisor import descriptors
from tests.support.harness import ROOT

SETTINGS = replace(Settings(), workers=2, max_concurrency=128)


@pytest.fixture(params=[128, 256, 1024, 65536])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(descriptors, "hard_limit", lambda: request.param)
    return int(request.param)


def test_all_requests_in_work_and_the_process_s_own_files_fit(limit: int) -> None:
    concurrency = descriptors.fitted(SETTINGS).max_concurrency
    assert 0 < concurrency <= 128
    assert descriptors.OWN_FILES + descriptors.FILES_PER_REQUEST * concurrency <= limit
    assert descriptors.nginx_connections(concurrency, limit) >= descriptors.FILES_PER_REQUEST * concurrency


def test_a_lower_limit_is_said_with_what_would_do(limit: int) -> None:
    said = descriptors.shortage(SETTINGS)
    lowered = descriptors.fitted(SETTINGS).max_concurrency < 128
    assert lowered == (limit < 448)
    assert bool(said) == lowered
    if lowered:
        assert f"no more than {limit} open files" in said and "--ulimit nofile=448" in said


def test_nginx_has_connections_for_twice_the_requests_that_may_be_in_work() -> None:
    assert descriptors.nginx_connections(128, 65536) == 4096
    assert descriptors.nginx_connections(4000, 65536) == 2 * 3 * 4000


def test_a_limit_too_low_to_serve_stops_the_start_with_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "hard_limit", lambda: 100)
    with pytest.raises(SettingsError, match=r"no more than 100 open files .* 128 are needed"):
        descriptors.fitted(SETTINGS)


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    script = """
import resource
from serving.supervisor.descriptors import raise_soft_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, min(hard, 500)))
raise_soft_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "500\n"
