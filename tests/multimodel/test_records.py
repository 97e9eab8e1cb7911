"""What the workers share of loaded archives: files that are true or ignored, and locks."""

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from serving.errors import TritonTimeout, TritonUnavailable
from serving.multimodel.records import READY, LoadedModel, LoadedModels
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

MODEL = LoadedModel("n/1", "/u", "t.tar.gz", "t.tar.gz", "/u/net", [], READY, 5, "load-1", 7.5, "1-70")


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedModels:
    (tmp_path / "models").mkdir()
    models = LoadedModels(tmp_path / "models", tmp_path / "status.json")
    say(tmp_path, starts=1, pid=70)
    return models


def say(folder: Path, **process: int | None) -> None:
    (folder / "status.json").write_text(json.dumps({"processes": {"tritonserver": process}}))


def test_a_model_is_found_by_its_name_and_by_its_target(loaded: LoadedModels) -> None:
    loaded.write(MODEL)
    assert loaded.read("n/1") == loaded.named("n/1") == loaded.named("t.tar.gz") == MODEL
    assert loaded.all() == [MODEL]


def test_what_is_removed_leaves_nothing_behind(loaded: LoadedModels) -> None:
    loaded.write(MODEL)
    loaded.remove(MODEL)
    assert loaded.read("n/1") is loaded.named("t.tar.gz") is None
    assert list(loaded.folder.iterdir()) == []


def test_nothing_is_true_any_more_of_a_tritonserver_that_has_died(loaded: LoadedModels, tmp_path: Path) -> None:
    loaded.write(MODEL)
    say(tmp_path, starts=2, pid=71)
    assert loaded.read("n/1") is loaded.named("t.tar.gz") is None
    assert loaded.all() == []
    loaded.write(replace(MODEL, server=loaded.server()))
    assert loaded.read("n/1")


def test_while_no_tritonserver_runs_nothing_is_known(loaded: LoadedModels, tmp_path: Path) -> None:
    loaded.write(MODEL)
    say(tmp_path, starts=1, pid=None)
    with pytest.raises(TritonUnavailable, match="again"):
        loaded.read("n/1")


def test_two_threads_do_not_change_one_model_at_once(loaded: LoadedModels) -> None:
    with loaded.changing("a", 1), loaded.changing("b", 1):
        assert loaded.is_changing("a")
        refused: list[BaseException] = []

        def change() -> None:
            try:
                with loaded.changing("a", 0.1):
                    pass
            except TritonTimeout as err:
                refused.append(err)

        thread = threading.Thread(target=change)
        thread.start()
        thread.join()
        assert len(refused) == 1
    assert not loaded.is_changing("a")


def test_a_model_is_unused_only_when_all_calls_have_ended(loaded: LoadedModels) -> None:
    with loaded.using("a"), loaded.using("a"), pytest.raises(TritonTimeout), loaded.unused("a", 0.1):
        pass
    with loaded.unused("a", 0.1):
        pass
    assert len(list(loaded.folder.iterdir())) == 1, "one small file for the lock"


def test_the_lock_of_a_worker_that_is_killed_is_free_again(loaded: LoadedModels) -> None:
    script = """if True:
        import sys, time
        from pathlib import Path
        from serving.multimodel.records import LoadedModels
        with LoadedModels(Path(sys.argv[1]), Path("none")).using("a"):
            print("locked", flush=True)
            time.sleep(60)
    """
    command = [sys.executable, "-c", script, str(loaded.folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as worker:
        assert worker.stdout and worker.stdout.readline() == b"locked\n"
        with pytest.raises(TritonTimeout), loaded.unused("a", 0.1):
            pass
        worker.kill()
        worker.wait()
        with loaded.unused("a", 0.1):
            pass
