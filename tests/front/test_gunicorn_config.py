"""What gunicorn calls before it forks a worker."""

import subprocess
import sys

import pytest

from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

FORKED = """
import gc
from types import SimpleNamespace
import serving.front.gunicorn_config as hooks
from predictor import create_app
from serving.settings.table import Settings

app = create_app(Settings.from_env({}))
before = len(gc.get_objects())
hooks.pre_fork(SimpleNamespace(app=SimpleNamespace(wsgi=lambda: app)), SimpleNamespace(age=1))
print(before, len(gc.get_objects()))
"""


def test_a_worker_s_garbage_collector_skips_the_imported_modules() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], cwd=ROOT, capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after < before / 100
