"""Counts outlive their process, its work does not, and files do not pile up: with the installed prometheus_client."""

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.harness import ROOT

# As gunicorn: a parent that counts nothing; workers, one after the other, each killed with a request in work. At the
# end the parent tells what a scrape shows.
SCRIPT = """if True:
    import os, signal, sys
    from serving.front import metrics
    shared = metrics.Metrics()
    for _ in range(int(sys.argv[1])):
        if not (worker := os.fork()):
            shared.started()
            shared.count_load("ok")
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(worker, 0)
        if sys.argv[2] == "noticed":
            metrics.forget_work()
    sys.stdout.write(shared.render(None).decode())
"""


def scrape(folder: Path, workers: int, noticed: str) -> dict[str, float]:
    environ = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
    command = [sys.executable, "-c", SCRIPT, str(workers), noticed]
    text = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


def test_what_killed_workers_counted_is_kept_and_their_work_is_forgotten(tmp_path: Path) -> None:
    shown = scrape(tmp_path, workers=5, noticed="noticed")
    assert shown["serve_model_loads_total"] == 5
    assert shown.get("serve_in_flight", 0) == 0


def test_a_worker_that_follows_a_killed_one_takes_over_its_place(tmp_path: Path) -> None:
    shown = scrape(tmp_path, workers=5, noticed="unnoticed")
    assert shown["serve_model_loads_total"] == 5
    assert shown["serve_in_flight"] == 1, "the last one's, which nobody has noticed yet"
    assert len(list(tmp_path.glob("counter_*.db"))) == 1, "they share it"


def test_a_new_gunicorn_goes_on_where_a_killed_one_stopped(tmp_path: Path) -> None:
    scrape(tmp_path, workers=2, noticed="unnoticed")
    shown = scrape(tmp_path, workers=1, noticed="noticed")
    assert shown["serve_model_loads_total"] == 3
    assert shown.get("serve_in_flight", 0) == 0
    assert len(list(tmp_path.glob("counter_*.db"))) == 1
