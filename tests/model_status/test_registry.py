"""Tests that a model's client is created once for each load, and that a call keeps the model loaded
while it uses it."""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.errors import (
    ModelFailed,
    ModelNotLoaded,
    ModelNotReady,
    ModelRestarting,
    VersionNotFound,
)
from serving.front.admission import Admission, Slot
from serving.model_status.models import Entry, Models, Rejection
from serving.model_status.registry import Registry
from serving.model_status.served_model import ServedModel
from serving.model_status.shared_files import ModelsFile
from serving.model_status.states import ADDING, LOADING, READY, RESTARTING, UNLOADING
from serving.settings.settings import AT_START, ON_POST
from serving.triton.connection import BackendDied
from serving.triton.gateway import TritonGateway
from tests.support.harness import PATIENCE
from tests.test_clients import OWN, write_client

pytestmark = pytest.mark.unit

ADMISSION = Admission(10, 1000, several_models=True)
SLOW = """
    def __init__(self, model):
        super().__init__(model)
        open("{fifo}").read()
"""


class Loaded(TritonGateway):
    """A Triton that has loaded `slow` and `warm`."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", 1)

    def config(self, name: str) -> Any:
        return ModelConfig(name=name)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Return a registry that serves `slow` and `warm`."""
    table = ModelsFile(tmp_path / "table")
    for name in ("slow", "warm"):
        write_client(tmp_path / name / "client.py", "old")
    entries = [
        Entry(name, name, str(tmp_path / name), "load", i, READY)
        for i, name in enumerate(("slow", "warm"))
    ]
    write(table, *entries)
    return Registry(Loaded(), table, tmp_path / "deaths")


@contextmanager
def called(registry: Registry, name: str, version: str | None = None) -> Iterator[ServedModel]:
    """Use the model in this context, as a call does."""
    with (
        ADMISSION.enter(0) as slot,
        registry.use(slot.keep, nullcontext(), name, version) as served,
    ):
        yield served


def write(table: ModelsFile, *entries: Entry, by_call: bool = False) -> None:
    policy = ON_POST if by_call else AT_START
    table.write(Models({entry.name: entry for entry in entries}, policy=policy.name))


def test_call_a_warm_model_while_another_client_is_loading(
    tmp_path: Path, registry: Registry
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "slow/client.py").write_text(OWN + SLOW.format(fifo=fifo))

    def call(name: str) -> str:
        with called(registry, name) as served:
            return served.name if served.client else ""

    assert call("warm") == "warm"
    with ThreadPoolExecutor() as threads:
        slow = [threads.submit(call, "slow") for _ in range(2)]
        with fifo.open("w"):  # opening the FIFO blocks until the client is being created
            assert threads.submit(call, "warm").result(PATIENCE) == "warm"
            assert not any(each.done() for each in slow)
        assert [each.result(PATIENCE) for each in slow] == ["slow", "slow"]
        assert registry.get("slow") is registry.get("slow")


def test_replace_a_client_and_forget_its_code_on_a_new_load(
    tmp_path: Path, registry: Registry
) -> None:
    before = registry.get("warm")
    old = sys.modules[type(before.client).__module__]
    write_client(tmp_path / "warm/client.py", "new")
    write(registry.table, Entry("warm", "warm", str(tmp_path / "warm"), "another", 1, READY))
    after = registry.get("warm")
    assert after.require_client().postprocess({}, {}, [1], {}) == ["new"]
    assert old not in sys.modules.values()


def test_report_a_dead_process_with_the_time_the_call_began(
    tmp_path: Path, registry: Registry
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "deaths"))
        began = time.monotonic()
        with pytest.raises(ModelRestarting), called(registry, "warm"):
            raise BackendDied("Stub process 'warm_0_0' is not healthy")
        report = json.loads(manager.recv(10_000))
    assert report == {
        "models": ["warm"],
        "details": "Stub process 'warm_0_0' is not healthy",
        "began": report["began"],
    }
    assert began <= report["began"] <= time.monotonic()
    with pytest.raises(ModelRestarting), called(registry, "warm"):
        raise BackendDied("while there is no manager")


def test_find_a_version_in_the_table_without_asking_triton(
    tmp_path: Path, registry: Registry
) -> None:
    folder = str(tmp_path / "warm")
    write(registry.table, Entry("warm", "warm", folder, "load", 1, READY, versions=("1", "12")))
    with called(registry, "warm", "12") as served:
        assert served.name == "warm"
    for version in ("2", "", " 1", "1x", "01"):
        with (
            pytest.raises(VersionNotFound, match=r"are: 1, 12$"),
            called(registry, "warm", version),
        ):
            pass


def test_tell_a_caller_that_its_model_is_being_reloaded(tmp_path: Path, registry: Registry) -> None:
    restarting = Entry(
        "warm", "warm", str(tmp_path / "warm"), "load", 1, RESTARTING, reason="it died"
    )
    with pytest.raises(ModelRestarting), called(registry, "warm"):
        write(registry.table, restarting)
        raise ModelNotReady("Request for unknown model: 'warm' is not ready")


def test_give_a_waiting_call_the_model_that_replaced_the_old_one(
    tmp_path: Path, registry: Registry
) -> None:
    class Replacing(Slot):
        def keep(self, model: str, column: int) -> None:
            write(
                registry.table, Entry("warm", "warm", str(tmp_path / "warm"), "another", 2, READY)
            )
            super().keep(model, column)

    with Replacing(ADMISSION) as slot, registry.use(slot.keep, nullcontext(), "warm"):
        assert [ADMISSION.leases.requests(column) for column in (1, 2)] == [0, 1]
        assert [load for load, _, _ in registry._served] == ["another"]
    assert ADMISSION.leases.requests(2) == 0


def test_ask_the_manager_for_a_rejected_model_which_may_have_changed(registry: Registry) -> None:
    rejected = Models(rejected=(Rejection({"warm": "old"}, ["it is broken"]),))
    loaded = registry.table.look()
    registry.table.write(rejected)
    registry._want = lambda name: registry.table.write(loaded)
    with called(registry, "warm") as served:
        assert served.name == "warm"
    registry.table.write(rejected)
    registry._want = lambda name: None  # the manager does not answer
    with pytest.raises(ModelFailed, match="it is broken"), called(registry, "warm"):
        pass


def test_answer_404_for_an_archive_that_is_not_loaded(tmp_path: Path) -> None:
    table = ModelsFile(tmp_path / "table")
    loading = Entry("n", "t", str(tmp_path), "load", 0, ADDING, target="t")
    registry = Registry(Loaded(), table, tmp_path / "deaths")
    for entries in ((), (loading,), (replace(loading, state=UNLOADING),)):
        write(table, *entries, by_call=True)
        for name in ("n", "t"):
            with pytest.raises(ModelNotLoaded), called(registry, name):
                pass
    write(table, replace(loading, state=LOADING))
    with pytest.raises(ModelNotReady), called(registry, "t"):
        pass
