"""Tests loads that Triton has not finished when the manager gives up, or during which the manager
or tritonserver is killed."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from serving.errors import TritonTimeout
from serving.host import tritonserver
from serving.host.files import ProcessStatus, write_status
from serving.model_lifecycle.manager import Manager
from serving.model_lifecycle.on_change import ModelFolder, OnChange, Rejected
from serving.model_lifecycle.on_post import OnPost
from serving.model_lifecycle.recovery import Recovery, Report
from serving.model_status.models import Entry
from serving.model_status.states import READY, UNLOADING
from serving.settings.settings import Settings
from serving.triton.gateway import TritonGateway
from tests.backends.triton_process import serving
from tests.model_lifecycle.test_multimodel import make_model
from tests.support.harness import wait_until

pytestmark = pytest.mark.stack


class Stubborn(Manager):
    """A manager that cannot end a load while `is_helpless` is set, as if tritonserver itself waited
    for a file."""

    is_helpless = False

    def _kill_processes(self, entry: Entry) -> bool:
        return self.is_helpless or super()._kill_processes(entry)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Stubborn]:
    """Run a manager in this process, and a tritonserver."""
    settings = replace(
        Settings(),
        run_dir=tmp_path,
        model_repositories=(tmp_path / "archives",),
        device="cpu",
        workers=1,
    )
    settings.staged_folder.mkdir()
    options = ("--model-control-mode=explicit", "--exit-on-error=false")
    log = tmp_path / "log"
    with serving(settings.staged_folder, tritonserver.backend_directory(), log, *options) as server:
        write_status(
            settings.status_file, "ready", {"tritonserver": ProcessStatus(server.process.pid, 1)}
        )
        yield Stubborn(settings, TritonGateway(f"127.0.0.1:{server.grpc}", 5))


@pytest.fixture
def policy(manager: Stubborn) -> OnPost:
    return OnPost(manager)


def hold_a_load(policy: OnPost, seconds: float = 2.0) -> str:
    """Start a load that does not end, and let the manager give it up after `seconds`. It continues
    in Triton as long as the model's process lives. Return the archive's URL."""
    folder = policy.settings.model_repositories[0] / "id/model"
    make_model(folder / "net", initialize="hold()")
    usual, policy.manager.load_timeout = policy.manager.load_timeout, seconds
    with pytest.raises(TritonTimeout):
        policy.load("m", str(folder), "m")
    policy.manager.load_timeout = usual
    entry = policy.manager.get("m")
    assert entry and entry.state == UNLOADING
    make_model(folder / "net")  # the next load gets this model, which does not hang
    return str(folder)


def test_end_a_load_soon_after_its_timeout(policy: OnPost) -> None:
    hold_a_load(policy)
    policy.step()
    assert policy.manager.get("m") is None
    assert policy.manager.store.names() == set()
    assert {each.state for each in policy.manager.index()} <= {"UNAVAILABLE"}


@pytest.mark.parametrize(
    "seconds", [2.0, 0.05], ids=["with its process", "before its process has started"]
)
def test_hold_the_next_load_until_a_timed_out_one_ended(policy: OnPost, seconds: float) -> None:
    url = hold_a_load(policy, seconds)
    policy.load("m", url, "m")
    entry = policy.manager.get("m")
    assert entry and entry.state == READY
    assert ready(policy) == {"m"}


def test_leave_the_old_model_to_the_next_tritonserver_after_a_late_reload(
    policy: OnPost, tmp_path: Path
) -> None:
    manager, on_change = policy.manager, OnChange(policy.manager)
    old, new = tmp_path / "old/net", tmp_path / "new/net"
    make_model(old)
    make_model(new, initialize="hold()")
    on_change._serve(ModelFolder(old, "1", (), None, old), "first")
    assert "net" in ready(policy)
    server = psutil.Process(manager.pid())
    manager.load_timeout = 2.0
    with pytest.raises(Rejected):
        on_change._serve(ModelFolder(new, "2", (), None, new), "second")
    wait_until(
        lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE,
        "the tritonserver that still loads the new model is killed",
    )
    assert (manager.store.path("net") / "1").resolve() == old / "1"
    entry = manager.get("net")
    assert entry and entry.load_id == "first"


def restarted(policy: OnPost, tmp_path: Path) -> set[str]:
    """Start another tritonserver, and return the models that it has loaded. Also let the policy
    finish the unloads that the killed one did not finish."""
    options = ("--model-control-mode=explicit", "--load-model=*")
    folder, log = policy.settings.staged_folder, tmp_path / "next.log"
    with serving(folder, tritonserver.backend_directory(), log, *options) as server:
        policy.manager.gateway = TritonGateway(f"127.0.0.1:{server.grpc}", 5)
        policy.step()
        return ready(policy)


def ready(policy: OnPost) -> set[str]:
    """Return the models that Triton has loaded."""
    return {each.name for each in policy.manager.index() if each.state == "READY"}


def load_sound(policy: OnPost) -> None:
    url = policy.settings.model_repositories[0] / "sound/model"
    make_model(url / "net")
    policy.load("sound", str(url), "sound")


def test_start_the_next_tritonserver_without_a_load_that_hung(
    policy: OnPost, manager: Stubborn, tmp_path: Path
) -> None:
    load_sound(policy)
    hold_a_load(policy)
    make_model(policy.settings.model_repositories[0] / "id/model/net", initialize="hold()")
    manager.unload_timeout = 0.5
    manager.is_helpless = True
    policy.step()
    entry = policy.manager.get("m")
    assert entry and entry.state == UNLOADING
    assert policy.manager.store.names() == {"sound"}
    assert restarted(policy, tmp_path) == {"sound"}
    assert policy.manager.get("m") is None


def test_start_the_next_tritonserver_without_a_reload_that_hung(
    policy: OnPost, tmp_path: Path
) -> None:
    load_sound(policy)
    url = policy.settings.model_repositories[0] / "id/model"
    make_model(url / "net")
    policy.load("m", str(url), "m")
    make_model(url / "net", initialize="hold()")
    recovery = Recovery(policy.manager)
    recovery.watch(policy.manager.pid())
    policy.manager.load_timeout = 10.0
    recovery.report(Report(["m"], "Stub process 'm_0_0' is not healthy.", time.monotonic()))
    recovery.step()
    wait_until(lambda: policy.manager.store.names() == {"sound"}, "it is not staged any more")
    assert restarted(policy, tmp_path) == {"sound"}


def test_unload_and_remove_what_the_table_does_not_list(policy: OnPost, tmp_path: Path) -> None:
    manager = policy.manager
    make_model(tmp_path / "net")
    manager.store.stage(tmp_path / "net", "stray")
    manager.gateway.load("stray", 60)
    url = policy.settings.model_repositories[0] / "id/model"
    make_model(url / "net")
    policy.load("m", str(url), "m")
    manager.record_loads()
    assert manager.store.names() == {"m"}
    assert ready(policy) == {"m"}
