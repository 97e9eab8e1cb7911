"""What POST /models does with a model whose unload has given up."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.errors import ModelAlreadyLoaded
from serving.host.files import ProcessStatus, write_status
from serving.model_manager.manager import Manager
from serving.model_manager.on_post import OnPost
from serving.models.table import READY, UNLOADING, Entry
from serving.settings.table import Settings
from serving.triton.connection import IndexEntry
from tests.model_manager.test_recovery import FakeTriton
from tests.repository.test_model_config import ONNX, X, Y, write

pytestmark = pytest.mark.unit


class Emptied(FakeTriton):
    """A Triton that has unloaded all."""

    def index(self) -> list[IndexEntry]:
        return []


def test_a_model_whose_unload_gave_up_can_be_loaded_again_and_a_loaded_one_cannot(tmp_path: Path) -> None:
    root = tmp_path / "archives"
    settings = replace(Settings(), run_dir=tmp_path, model_repositories=(root,), device="cpu", workers=1)
    write(root / "a/model/net", f"{ONNX} {X} {Y}")
    write_status(settings.status_file, "ready", {"tritonserver": ProcessStatus(2**22 + 1, 1)})
    triton = Emptied()
    manager = Manager(settings, triton)
    manager.put(Entry("n", "n", "", "earlier", 0, UNLOADING, target="n"))
    policy = OnPost(manager)
    policy.load("n", str(root / "a/model"), "n")
    assert (triton.unloads, triton.loads) == (["n"], ["n"])
    entry = manager.get("n")
    assert entry and (entry.state, entry.load_id != "earlier") == (READY, True)
    with pytest.raises(ModelAlreadyLoaded):
        policy.load("n", str(root / "a/model"), "n")
