"""Counts outlive their process, and files do not pile up: with the installed prometheus_client."""

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.harness import ROOT

# As gunicorn: a parent that counts nothing, and workers, one after the other, each killed. At the end the parent tells
# what a scrape shows.
SCRIPT = """if True:
    import os, signal, sys
    from serving.front import metrics
    shared = metrics.Metrics()
    for _ in range(int(sys.argv[1])):
        if not (worker := os.fork()):
            shared.count_load("ok")
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(worker, 0)
    sys.stdout.write(shared.render(None, 0).decode())
"""


def scrape(folder: Path, workers: int) -> dict[str, float]:
    environ = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
    command = [sys.executable, "-c", SCRIPT, str(workers)]
    text = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


def test_a_worker_that_follows_a_killed_one_takes_over_its_place_and_counts(tmp_path: Path) -> None:
    assert scrape(tmp_path, workers=5)["serve_model_loads_total"] == 5
    assert len(list(tmp_path.glob("counter_*.db"))) == 2, "the parent's, and one that they share"


def test_a_new_gunicorn_goes_on_where_a_killed_one_stopped(tmp_path: Path) -> None:
    scrape(tmp_path, workers=2)
    assert scrape(tmp_path, workers=1)["serve_model_loads_total"] == 3
    assert len(list(tmp_path.glob("counter_*.db"))) == 2
