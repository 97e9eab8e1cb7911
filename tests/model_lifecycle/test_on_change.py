"""The policy for folders that change, with a Triton that does not end a load."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.errors import TritonTimeout
from serving.model_lifecycle.manager import Manager
from serving.model_lifecycle.on_change import ModelFolder, OnChange, Rejected
from serving.repository.staging import signature
from tests.model_lifecycle.test_recovery import World
from tests.repository.test_model_config import ONNX, X, Y, write
from tests.support.harness import PATIENCE
from tests.support.started import kill

pytestmark = pytest.mark.unit


def make(folder: Path, word: str) -> ModelFolder:
    write(folder, f"{ONNX} {X} {Y}")
    (folder / "word.txt").write_text(word)
    return ModelFolder(folder, signature(folder), (), None, copy=folder)


def test_restart_tritonserver_with_the_old_model_if_a_load_does_not_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    try:
        manager = Manager(replace(world.settings, device="cpu"), world.triton)
        policy = OnChange(manager)
        policy._serve(make(tmp_path / "old/net", "old"), "load 1")
        world.triton.error = TritonTimeout("late")
        with pytest.raises(Rejected, match="net: late"):
            policy._serve(make(tmp_path / "new/net", "new"), "load 2")
        served = manager.get("net")
        assert served and (served.load_id, served.versions) == ("load 1", ("1",))
        assert (manager.store.path("net") / "word.txt").read_text() == "old"
        assert world.server.wait(PATIENCE) < 0
    finally:
        kill(world.server)


def test_name_the_folder_of_the_author_in_each_mistake() -> None:
    copied = Rejected("a: /run/1/a/config.pbtxt is wrong", "b: /run/1/b has no version")
    assert copied.in_folder(Path("/run/1"), Path("/models")).args == (
        "a: /models/a/config.pbtxt is wrong",
        "b: /models/b has no version",
    )
