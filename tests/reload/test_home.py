"""A model gets its own name in Triton again after it was switched to the copy that was tried."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from serving.errors import InvalidRequest
from serving.host.status import ProcessStatus, write_status
from serving.inference.crashes import Crashes
from serving.reload.home import Home
from serving.reload.loading import Loader
from serving.repository.live import LiveModels, Table
from serving.settings.table import Settings
from serving.triton.gateway import IndexEntry

pytestmark = pytest.mark.unit


@dataclass
class FakeGateway:
    """A Triton that loads and unloads at once, but for names that fail so many times."""

    loaded: set[str]
    failures: dict[str, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def index(self) -> list[IndexEntry]:
        return [IndexEntry(name, "1", "READY", "") for name in self.loaded]

    def load(self, name: str, _timeout: float) -> None:
        self.calls.append(f"load {name}")
        if left := self.failures.get(name, 0):
            self.failures[name] = left - 1
            raise InvalidRequest("no memory")
        self.loaded.add(name)

    def unload(self, name: str) -> None:
        self.calls.append(f"unload {name}")
        self.loaded.remove(name)


@pytest.fixture
def live(tmp_path: Path) -> LiveModels:
    """The new copy of `model` is served as `__model`; Triton still has the old one."""
    folder = tmp_path / "models/model"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text("max_batch_size: 2")
    made = LiveModels(tmp_path / "live")
    made.begin([folder], {}, {})
    new = replace(made.table().models["model"], triton_name="__model", load="new")
    made.copy("model", new)
    made.show("model", new, "max_batch_size: 3")
    made.write(Table({"model": new}))
    return made


def home(live: LiveModels, gateway: Any, share: float) -> Home:
    write_status(live.folder.parent / "status.json", "ready", {"tritonserver": ProcessStatus(os.getpid(), 1)})
    settings = Settings(run_dir=live.folder.parent, device="cpu", model_memory_share=share)
    return Home(settings, live, Loader(settings, live, gateway, Crashes(None)))


IN_PLACE = ["load model", "unload __model"]
IN_TURN = ["unload model", "load model", "unload __model"]


@pytest.mark.parametrize(
    ("share", "failures", "calls"),
    [
        (1.0, 0, IN_PLACE),
        (0.0, 0, IN_TURN),
        (1.0, 1, ["load model", *IN_TURN]),  # what only Triton knows, as a GPU's memory
    ],
)
def test_a_model_gets_its_name_in_place_of_the_old_one_or_where_memory_is_short_after_it(
    live: LiveModels, share: float, failures: int, calls: list[str]
) -> None:
    gateway = FakeGateway({"model", "__model"}, {"model": failures})
    tidied = home(live, gateway, share)
    for _ in range(6):
        tidied.tidy()
        assert live.table().models["model"].triton_name in gateway.loaded
    assert gateway.calls == calls
    assert live.leftovers() == []
    assert "max_batch_size: 3" in (live.repository / "model/config.pbtxt").read_text()


def test_nothing_is_done_to_what_a_call_still_uses(live: LiveModels) -> None:
    gateway = FakeGateway({"model", "__model"})
    tidied, before = home(live, gateway, 1.0), live.table()
    live.write(Table({"model": replace(before.models["model"], triton_name="model")}))
    with LiveModels(live.folder).using("model"):
        live.write(before)
        for _ in range(3):
            tidied.tidy()
    assert gateway.calls == []
    tidied.tidy()
    assert gateway.calls[:1] == IN_PLACE[:1]
