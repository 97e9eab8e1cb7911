"""Counts outlive their process, and files do not pile up: with the installed prometheus_client."""

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.disks import fill, small_disk
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


FULL = """if True:
    import os, sys
    from serving.front import metrics
    shared = metrics.Metrics()
    shared.place()
    with open(os.path.join(os.environ["PROMETHEUS_MULTIPROC_DIR"], "fill"), "wb", buffering=0) as filled:
        try:
            while True:
                filled.write(bytes(4096))
        except OSError:
            pass
    for number in range(100):
        shared.count(metrics.Finished(f"model-{number}", "1", 200, 0.1, 10, 10, {"decode": 0.1, "triton": 0.1}))
    sys.stdout.write(shared.render(None, 0).decode())
"""


def test_with_a_full_disk_what_finds_no_room_is_not_counted_and_the_process_lives_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        environ = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(disk)}
        done = subprocess.run(
            [sys.executable, "-c", FULL], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
        )
    counted = done.stdout.count("serve_request_seconds_count{")
    assert 1 <= counted < 100, "the pages that were reserved have room for some"
    assert "a request is not counted" in done.stderr


def test_with_a_full_disk_at_the_start_there_is_an_error_that_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        fill(disk)
        environ = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(disk)}
        done = subprocess.run(
            [sys.executable, "-c", FULL], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )
    assert (done.returncode, "No space left on device" in done.stderr) == (1, True)
