"""Tests finding the model's folder in an archive, and the errors that name mistakes."""

import os
import re
import socket
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from serving.errors import ConfigError, InvalidRequest
from serving.preparation.survey import choose_models
from serving.repository.layout import LayoutError
from serving.repository.locate_archive import locate
from serving.repository.paths import check_entries, with_sources

pytestmark = pytest.mark.unit

MODEL = 'backend: "python"'
ENSEMBLE = 'platform: "ensemble"\nensemble_scheduling { step { model_name: "part" } }'


def lay_out(root: Path, **files: str) -> str:
    """Make an archive with these files, and return its URL. The argument NAME__config is
    NAME/config.pbtxt, and NAME__1 is a version."""
    url = root / "abc" / "model"
    url.mkdir(parents=True)
    for name, text in files.items():
        path = url / name.replace("__", "/").replace("config", "config.pbtxt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if text.startswith('platform: "ensemble"'):
            (path.parent / "1").mkdir()
    return str(url)


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"config": MODEL, "1__model.onnx": "x"}, "model"),
        ({"net__config": MODEL}, "net"),
        ({"net__1__model.onnx": "x"}, "net"),
        ({"all__config": ENSEMBLE, "part__config": MODEL, "zz__config": MODEL}, "all"),
        (
            {
                "in__config": ENSEMBLE,
                "out__config": ENSEMBLE.replace("part", "in"),
                "part__config": MODEL,
            },
            "out",
        ),
    ],
)
def test_find_the_model_at_the_root_in_a_folder_or_as_the_outer_ensemble(
    tmp_path: Path, files: dict[str, str], name: str
) -> None:
    archive = locate(lay_out(tmp_path, **files), tmp_path)
    assert archive.folder.name == name
    folders = {file.partition("__")[0] for file in files} if name != "model" else {"model"}
    assert {part.name for part in archive.parts} == folders


def test_report_an_ensemble_without_a_version_like_a_start(tmp_path: Path) -> None:
    url = Path(lay_out(tmp_path, all__config=ENSEMBLE, part__config=MODEL))
    (url / "all/1").rmdir()
    with pytest.raises(ConfigError, match=r"'all' has no version: .* that may be empty"):
        locate(str(url), tmp_path)
    (mistake, *_) = survey_mistakes(url)
    assert "'all' has no version" in mistake and "that may be empty" in mistake


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"all__config": ENSEMBLE, "all__part__config": MODEL, "all__part__1__model.py": ""},
            "'all' calls 'part', which does not exist.*put it beside",
        ),
        (
            {"config": ENSEMBLE, "part__config": MODEL, "part__1__model.py": ""},
            "a model is at the root .*found 1/, config.pbtxt, part/",
        ),
    ],
    ids=["parts inside", "at the root"],
)
def test_suggest_an_mv_that_makes_a_loadable_archive(
    files: dict[str, str], message: str, tmp_path: Path
) -> None:
    url = lay_out(tmp_path, **files)
    with pytest.raises(ConfigError, match=message) as caught:
        locate(url, tmp_path)
    (mistake, *_) = survey_mistakes(Path(url))
    assert re.search(message, mistake)
    command = re.search("(cd|mv) /.*", str(caught.value))
    assert command
    subprocess.run(command[0], shell=True, check=True)
    assert {part.name for part in locate(url, tmp_path).parts} > {"part"}
    assert set(choose_models([Path(url)]).models) > {"part"}


def survey_mistakes(repository: Path) -> Sequence[str]:
    """Return the mistakes that a start or a check reports for the folder."""
    with pytest.raises(LayoutError) as caught:
        choose_models([repository])
    return caught.value.mistakes


def test_name_a_configuration_that_cannot_be_read(tmp_path: Path) -> None:
    url = lay_out(tmp_path, all__config=ENSEMBLE, part__config="backend: python")
    with pytest.raises(ConfigError, match="model/part/config"):
        locate(url, tmp_path)


def test_stage_only_folders_that_are_models(tmp_path: Path) -> None:
    url = lay_out(
        tmp_path, net__config=MODEL, __MACOSX__x="", **{".git__x": "", "docs__readme": ""}
    )
    archive = locate(url, tmp_path)
    assert [folder.name for folder in archive.parts] == ["net"] and archive.folder == archive.parts[
        0
    ]


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({}, "nothing"),
        ({"model.onnx": "x"}, "model.onnx"),
        ({"1__model.onnx": "x"}, "1/"),
        ({"a__config": MODEL, "b__config": MODEL}, "a/, b/"),
        ({"a__config": ENSEMBLE, "b__config": ENSEMBLE}, "a/, b/"),
        ({"export__net__config": MODEL}, "export/net/config.pbtxt"),
    ],
)
def test_list_the_files_of_an_archive_that_has_no_single_model(
    tmp_path: Path, files: dict[str, str], name: str
) -> None:
    with pytest.raises((ConfigError, InvalidRequest), match=name):
        locate(lay_out(tmp_path, **files), tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/etc",
        "{root}/abc/model/a/b",
        "{root}/a-b/model",
        "{root}/../x/model",
        "{root}/%s/model" % ("a" * 256),
        "{root}/abc/model/%s" % ("a" * 256),
    ],
)
def test_refuse_urls_outside_the_platform_s_folder(tmp_path: Path, url: str) -> None:
    """tests/conformance sends other URLs over HTTP."""
    lay_out(tmp_path, config=MODEL)
    with pytest.raises((ConfigError, InvalidRequest)):
        locate(url.replace("{root}", str(tmp_path)), tmp_path)


OUT = ["/proc/self", "/etc/passwd", "../../../../../../outside"]


@pytest.mark.parametrize("name", ["1", "1/model.onnx", "deep/er/labels.txt"])
@pytest.mark.parametrize("target", OUT)
def test_refuse_a_link_out_of_the_platform_s_folder(tmp_path: Path, name: str, target: str) -> None:
    root = tmp_path / "root"
    link = Path(lay_out(root, config=MODEL)) / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    with pytest.raises((ConfigError, InvalidRequest), match=name):
        locate(str(root / "abc/model"), root)


@pytest.mark.parametrize("name", ["abc", "abc/model"])
def test_refuse_a_folder_that_links_out_of_the_platform_s_folder(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    lay_out(tmp_path / "outside", config=MODEL)
    (root / name).parent.mkdir(parents=True)
    (root / name).symlink_to(tmp_path / "outside" / name)
    with pytest.raises((ConfigError, InvalidRequest), match="abc/model"):
        locate(str(root / "abc/model"), root)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def make_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make a device")


@pytest.mark.parametrize("make", [os.mkfifo, make_socket, make_device])
@pytest.mark.parametrize("name", ["1/model.onnx", "pipe"])
def test_refuse_an_archive_with_anything_but_files_and_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], name: str
) -> None:
    folder = Path(lay_out(tmp_path, config=MODEL, **{"1__labels.txt": "x"}))
    monkeypatch.chdir(folder)  # the path of a socket must be short
    make(Path(name))
    with pytest.raises((ConfigError, InvalidRequest), match=name):
        locate(str(folder), tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, make_socket, make_device])
@pytest.mark.parametrize("name", ["labels.txt", "1/model.onnx"])
def test_refuse_a_link_to_anything_but_a_file_or_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], name: str
) -> None:
    """The special file is outside the model's folder, so only the link leads to it."""
    folder = Path(lay_out(tmp_path, net__config=MODEL, net__1__x="", extra__y=""))
    monkeypatch.chdir(folder / "extra")
    make(Path("special"))
    (folder / "net" / name).symlink_to(folder / "extra/special")
    with pytest.raises(ConfigError, match=f"net/{name} is neither a file nor a folder"):
        locate(str(folder / "net"), tmp_path)


@pytest.mark.parametrize(
    ("link", "target"),
    [("1", "1"), ("1", "labels"), ("self", "."), ("deep/er", ".."), ("deep/er", "../deep")],
)
def test_refuse_links_in_a_circle(tmp_path: Path, link: str, target: str) -> None:
    """Triton would follow two such links again and again, 2^40 times."""
    url = Path(lay_out(tmp_path, config=MODEL, deep__x=""))
    (url / "labels").symlink_to("1")
    (url / link).symlink_to(target)
    with pytest.raises(ConfigError, match="leads"):
        locate(str(url), tmp_path)


def test_refuse_a_link_to_another_archive(tmp_path: Path) -> None:
    """The other archive may never be loaded, so nothing checks where its own links lead."""
    url = lay_out(tmp_path, config=MODEL)
    (tmp_path / "other/model").mkdir(parents=True)
    (tmp_path / "other/model/evil").symlink_to("/etc")
    (Path(url) / "l").symlink_to(tmp_path / "other/model")
    with pytest.raises(ConfigError, match=r"model/l leads to .*other/model, out of"):
        locate(url, tmp_path)


def test_share_files_between_models_of_an_archive_by_links(tmp_path: Path) -> None:
    url = lay_out(tmp_path, net__config=MODEL, shared__labels="cat")
    (Path(url) / "net/labels.txt").symlink_to("../shared/labels")
    (Path(url) / "net/1").symlink_to("../shared")
    for path in (url, f"{url}/net"):
        assert locate(path, tmp_path).folder == Path(url) / "net"


def test_refuse_an_archive_that_takes_too_long_to_search(tmp_path: Path) -> None:
    """Each folder has two links to the next one, so following them doubles the entries each
    time."""
    url = Path(lay_out(tmp_path, config=MODEL))
    for number in range(40):
        (url / f"d{number}").mkdir()
        for name in "ab":
            (url / f"d{number}" / name).symlink_to(f"../d{number + 1}")
    with pytest.raises(ConfigError, match="more than 1000 files"):
        check_entries(url, tmp_path, most=1000)


def test_refuse_an_archive_that_is_too_deep(tmp_path: Path) -> None:
    url = Path(lay_out(tmp_path, config=MODEL))
    (url / "/".join("d" * 500)).mkdir(parents=True)
    with pytest.raises(ConfigError, match="64 folders deep"):
        locate(str(url), tmp_path)


def test_bound_the_configurations_of_an_archive_together(tmp_path: Path) -> None:
    large = MODEL + " " * 2**19
    url = lay_out(tmp_path, a__config=large, b__config=large)
    with pytest.raises(ConfigError, match="1048576"):
        locate(url, tmp_path)


def test_name_the_authors_folders_in_a_message() -> None:
    sources = {
        Path("/run/models/m"): Path("/archives/m"),
        Path("/run/models/m__part"): Path("/archives/part"),
    }
    message = "/run/models/m/1/model.py imports /run/models/m__part/1/model.py"
    expected = "/archives/m/1/model.py imports /archives/part/1/model.py"
    assert with_sources(message, sources) == expected
