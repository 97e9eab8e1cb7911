"""Copies of the models that are served while their folders change, and the table of them."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from serving.repository import live as live_module
from serving.repository.live import LiveModels, Table, copy, signature

pytestmark = pytest.mark.unit


def make(folder: Path) -> Path:
    (folder / "1").mkdir(parents=True)
    (folder / "1/model.onnx").write_text("weights")
    (folder / "config.pbtxt").write_text("as it lies")
    return folder


@pytest.fixture
def live(tmp_path: Path) -> LiveModels:
    made = LiveModels(tmp_path / "live")
    made.begin([make(tmp_path / "models/a"), make(tmp_path / "models/b")], {}, {"b": ["a"]})
    return made


def rewrite(folder: Path) -> None:
    (folder / "config.pbtxt").write_text("of equal l.")


def replace_file(folder: Path) -> None:
    """Replace a file with one of the same size and time."""
    file, found = folder / "config.pbtxt", (folder / "config.pbtxt").stat()
    (folder / "new").write_text("of equal l.")
    os.utime(folder / "new", ns=(found.st_atime_ns, found.st_mtime_ns))
    (folder / "new").replace(file)


def add_a_version(folder: Path) -> None:
    (folder / "2").mkdir()


def remove(folder: Path) -> None:
    (folder / "1/model.onnx").unlink()


@pytest.mark.parametrize("change", [rewrite, replace_file, add_a_version, remove])
def test_a_signature_tells_a_change(tmp_path: Path, change: Callable[[Path], None]) -> None:
    before = signature(make(tmp_path / "model"))
    assert signature(tmp_path / "model") == before
    change(tmp_path / "model")
    assert signature(tmp_path / "model") != before


def test_what_no_model_reads_is_no_change_and_a_link_to_its_own_folder_is_no_end(tmp_path: Path) -> None:
    before = signature(make(tmp_path / "model"))
    (tmp_path / "model/.config.pbtxt.swp").touch()
    (tmp_path / "model/__pycache__").mkdir()
    (tmp_path / "model/1/again").symlink_to(tmp_path / "model")
    assert signature(tmp_path / "model") == before
    assert signature(tmp_path / "nowhere") == ""


def test_a_copy_stays_as_it_was_and_a_large_file_of_it_is_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "LARGEST_COPY", 20)
    model = make(tmp_path / "model")
    (model / "1/large").write_text("x" * 21)
    (model / "2").symlink_to(model / "1")
    copy(model, tmp_path / "copy")
    assert (tmp_path / "copy/1/large").samefile(model / "1/large")
    (model / "config.pbtxt").write_text("changed")
    (model / "new").write_text("another large one")
    (model / "new").replace(model / "1/large")
    assert (tmp_path / "copy/config.pbtxt").read_text() == "as it lies"
    assert (tmp_path / "copy/1/large").read_text() == (tmp_path / "copy/2/large").read_text() == "x" * 21


def test_other_processes_see_what_the_writer_wrote(live: LiveModels) -> None:
    other = LiveModels(live.folder)
    assert other.table() == live.table()
    assert other.table().models["b"].parts == ("a",)
    assert (live.path(other.table().models["a"]) / "config.pbtxt").read_text() == "as it lies"
    live.write(Table())
    assert other.table() == Table(refused=[])


def test_a_copy_is_used_until_its_last_call_ends_and_a_new_call_meets_the_new_one(live: LiveModels) -> None:
    worker, before = LiveModels(live.folder), live.table().models["a"]
    after = replace(before, triton_name="__a", load="other")
    live.copy("a", after)
    live.show("a", after, "new")
    with worker.using("a") as old:
        live.write(replace(live.table(), models={**live.table().models, "a": after}))
        assert (old, live.leftovers(), live.is_used("a")) == (before, ["a"], True)
        with worker.using("a") as new:
            assert new == after
    assert not live.is_used("a")
    live.hide("a")
    live.remove_copies()
    assert live.leftovers() == []
    assert {path.name for path in (live.folder / "copies").iterdir()} == {"other", live.table().models["b"].load}
    with worker.using("nobody") as none:
        assert none is None


def test_however_often_the_table_changes_no_call_uses_what_is_gone(live: LiveModels) -> None:
    ended, missing = threading.Event(), []

    def call() -> None:
        worker = LiveModels(live.folder)
        while not ended.is_set():
            with worker.using("a") as model:
                if model is None or not (live.path(model) / "config.pbtxt").is_file():
                    missing.append(model)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for name in ["__a", "a"] * 15:
        after = replace(live.table().models["a"], triton_name=name)
        live.show("a", after)
        live.write(replace(live.table(), models={**live.table().models, "a": after}))
        for leftover in live.leftovers():
            while live.is_used(leftover):
                pass
            live.hide(leftover)
    ended.set()
    for thread in threads:
        thread.join()
    assert missing == []
