"""Changes of model folders: which belong together, and which models are to be served."""

from pathlib import Path

import pytest

from serving.reload.folders import Folders, models_in
from serving.repository.live import LiveModel, Table
from serving.settings.table import Settings

pytestmark = pytest.mark.unit


def make(repository: Path, name: str, *parts: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    steps = "".join(f'step {{ model_name: "{part}" }} ' for part in parts)
    text = f'platform: "ensemble" ensemble_scheduling {{ {steps} }}' if parts else "max_batch_size: 1"
    (repository / name / "config.pbtxt").write_text(text)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    make(tmp_path, "tokens")
    make(tmp_path, "vectors")
    make(tmp_path, "texts", "tokens", "vectors")
    make(tmp_path, "images")
    return tmp_path


def folders(repository: Path, table: Table | None = None, settings: Settings | None = None) -> Folders:
    return Folders(settings or Settings(device="cpu"), table or Table(), models_in([repository]))


def served(repository: Path) -> Table:
    """Return the table of a server that serves the folders as they are."""
    here = folders(repository)
    return Table(
        {
            name: LiveModel(name, "load", str(found.folder), found.signature, here.parts[name])
            for name, found in here.seen.items()
        }
    )


def units(here: Folders) -> list[list[str]]:
    return sorted(sorted(unit) for unit in here.units())


def test_what_is_served_as_it_lies_has_not_changed(repository: Path) -> None:
    assert units(folders(repository, served(repository))) == []
    assert units(folders(repository)) == [["images"], ["texts", "tokens", "vectors"]]


def test_a_part_changes_with_all_that_call_it_and_what_these_call(repository: Path) -> None:
    before = served(repository)
    (repository / "tokens/words.txt").touch()
    assert units(folders(repository, before)) == [["texts", "tokens", "vectors"]]


def test_a_model_that_is_called_no_more_changes_with_the_one_that_called_it(repository: Path) -> None:
    before = served(repository)
    (repository / "texts/config.pbtxt").write_text('ensemble_scheduling { step { model_name: "vectors" } }')
    assert units(folders(repository, before)) == [["texts", "tokens", "vectors"]]


def test_what_has_no_folder_any_more_is_to_be_served_no_more(repository: Path) -> None:
    before = served(repository)
    (repository / "images").rename(repository / ".images")
    here = folders(repository, before)
    assert units(here) == [["images"]]
    assert "images" not in here.wanted


@pytest.mark.parametrize(
    "settings", [Settings(device="cpu", load_models=("texts",)), Settings(device="cpu", default_model="texts")]
)
def test_what_the_settings_leave_out_is_not_taken(repository: Path, settings: Settings) -> None:
    make(repository, "added")
    assert folders(repository, settings=settings).wanted == {"texts", "tokens", "vectors"}
