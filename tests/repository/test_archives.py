"""Which folder of an archive is the model, what Triton is shown of it, and what a mistake is called."""

from pathlib import Path

import pytest

from serving.errors import InvalidRequest, LoadFailed
from serving.repository.archives import locate

MODEL = 'backend: "python"'
STEPS = 'ensemble_scheduling { step { model_name: "part" } }'
SPELLINGS = [f"platform: 'ensemble'\n{STEPS}", STEPS, f'platform: "ensemble" # not model_name: "all"\n{STEPS}']
ENSEMBLE = 'platform: "ensemble"\nensemble_scheduling { step { model_name: "part" } }'


def lay_out(root: Path, **files: str) -> str:
    """An archive with these files (NAME__config is NAME/config.pbtxt, NAME__1 is a version); its URL."""
    url = root / "abc" / "model"
    url.mkdir(parents=True)
    for name, text in files.items():
        path = url / name.replace("__", "/").replace("config", "config.pbtxt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(url)


def test_a_model_at_the_root_is_the_folder_itself(tmp_path: Path) -> None:
    url = lay_out(tmp_path, config=MODEL, **{"1__model.onnx": "x"})
    assert locate(url, tmp_path).folder == Path(url)


def test_a_models_only_folder_is_the_model_with_or_without_a_configuration(tmp_path: Path) -> None:
    configured = lay_out(tmp_path / "a", net__config=MODEL)
    completed = lay_out(tmp_path / "b", **{"net__1__model.onnx": "x"})
    assert locate(configured, tmp_path / "a").folder.name == "net"
    assert locate(completed, tmp_path / "b").folder.name == "net"


def test_a_folder_below_the_model_can_be_named(tmp_path: Path) -> None:
    url = lay_out(tmp_path, sub__net__config=MODEL, other__config=MODEL)
    assert locate(url + "/sub", tmp_path).folder == Path(url) / "sub/net"
    assert locate(url + "/other/", tmp_path).folder == Path(url) / "other"


def test_an_ensemble_is_the_model_and_its_parts_come_with_it(tmp_path: Path) -> None:
    url = lay_out(tmp_path, all__config=ENSEMBLE, part__config=MODEL, zz__config=MODEL)
    archive = locate(url, tmp_path)
    assert archive.folder.name == "all"
    assert [part.name for part in archive.parts] == ["all", "part", "zz"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_ensemble_is_told_by_its_configuration_however_that_is_written(spelling: str, tmp_path: Path) -> None:
    url = lay_out(tmp_path, all__config=spelling, part__config=MODEL)
    assert locate(url, tmp_path).folder.name == "all"


def test_an_ensemble_that_a_comment_names_is_no_part(tmp_path: Path) -> None:
    commented = MODEL + " # model_name: 'all'"
    url = lay_out(tmp_path, all__config=ENSEMBLE, part__config=commented)
    assert locate(url, tmp_path).folder.name == "all"


def test_a_configuration_that_cannot_be_read_is_told_with_its_place(tmp_path: Path) -> None:
    url = lay_out(tmp_path, all__config=ENSEMBLE, part__config="backend: python")
    with pytest.raises(LoadFailed, match=r"model/part/config.pbtxt cannot be read: 1:10 : "):
        locate(url, tmp_path)


def test_of_nested_ensembles_the_outermost_is_the_model(tmp_path: Path) -> None:
    outer = ENSEMBLE.replace("part", "inner")
    url = lay_out(tmp_path, inner__config=ENSEMBLE, outer__config=outer, part__config=MODEL)
    assert locate(url, tmp_path).folder.name == "outer"


def test_folders_that_are_no_models_are_not_shown_to_triton(tmp_path: Path) -> None:
    url = lay_out(tmp_path, net__config=MODEL, __MACOSX__x="", **{".git__x": "", "docs__readme": ""})
    locate(url, tmp_path).stage(tmp_path / "staged")
    assert [folder.name for folder in (tmp_path / "staged").iterdir()] == ["net"]
    assert (tmp_path / "staged/net/config.pbtxt").read_text() == MODEL


def test_the_weight_is_that_of_the_largest_version_and_of_the_other_files(tmp_path: Path) -> None:
    url = lay_out(tmp_path, net__config="12345", **{"net__1__model.onnx": "x" * 100, "net__2__model.onnx": "x" * 30})
    assert locate(url, tmp_path).weight() == 105


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["nothing"]),
        ({"model.onnx": "x"}, ["no config.pbtxt", "model.onnx"]),
        ({"1__model.onnx": "x"}, ["no config.pbtxt", "1/"]),
        ({"a__config": MODEL, "b__config": MODEL}, ["several models", "a/, b/", "no ensemble"]),
        ({"a__config": ENSEMBLE, "b__config": ENSEMBLE}, ["several ensembles", "a/, b/"]),
        ({"export__net__config": MODEL}, ["one folder too deep", "export/net/config.pbtxt"]),
    ],
)
def test_a_layout_mistake_says_what_was_found_and_shows_an_example(
    tmp_path: Path, files: dict[str, str], words: list[str]
) -> None:
    url = lay_out(tmp_path, **files)
    with pytest.raises(InvalidRequest) as caught:
        locate(url, tmp_path)
    assert all(word in str(caught.value) for word in [url, "example: tar czf", *words]), caught.value


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/etc",
        "abc/model",
        "{root}/abc",
        "{root}/abc/model/a/b",
        "{root}/a-b/model",
        "{root}/abc/other",
        "{root}/../x/model",
        "{root}/abc/model/../../../etc",
        "/dev/shm",
        "/proc/self",
        "/sys/kernel",
    ],
)
def test_urls_outside_of_the_platforms_folder_are_refused(tmp_path: Path, url: str) -> None:
    lay_out(tmp_path, config=MODEL)
    with pytest.raises(InvalidRequest, match="'url' must be"):
        locate(url.replace("{root}", str(tmp_path)), tmp_path)


OUT = ["/proc/self", "/etc/passwd", "../../../../../../outside"]


@pytest.mark.parametrize("place", ["1", "1/model.onnx", "deep/er/labels.txt"])
@pytest.mark.parametrize("target", OUT)
def test_a_link_out_of_the_platforms_folder_is_refused(tmp_path: Path, place: str, target: str) -> None:
    root = tmp_path / "root"
    link = Path(lay_out(root, config=MODEL)) / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    with pytest.raises(InvalidRequest, match=rf"{place} leads to .*, out of {root}: put the file itself"):
        locate(str(root / "abc/model"), root)


@pytest.mark.parametrize("place", ["abc", "abc/model"])
def test_a_folder_that_is_a_link_out_of_the_platforms_folder_is_refused(tmp_path: Path, place: str) -> None:
    root = tmp_path / "root"
    lay_out(tmp_path / "outside", config=MODEL)
    (root / place).parent.mkdir(parents=True)
    (root / place).symlink_to(tmp_path / "outside" / place)
    with pytest.raises(InvalidRequest, match=rf"abc/model leads to .*, out of {root}"):
        locate(str(root / "abc/model"), root)


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    url = lay_out(tmp_path, config=MODEL)
    (Path(url) / "1").symlink_to("2")
    (Path(url) / "2").symlink_to("1")
    (Path(url) / "self").symlink_to(".")
    assert locate(url, tmp_path).folder == Path(url)


def test_a_link_within_the_platforms_folder_is_followed(tmp_path: Path) -> None:
    lay_out(tmp_path, config=MODEL)
    (tmp_path / "abc/model/labels.txt").symlink_to("config.pbtxt")
    assert locate(str(tmp_path / "abc/model"), tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"there is no folder .*/abc/model"):
        locate(f"{tmp_path}/abc/model", tmp_path)
