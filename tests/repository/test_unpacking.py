"""Tests that archives are unpacked only within limits."""

import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from serving.errors import LoadFailed
from serving.repository.cache import Cache
from serving.repository.source import FolderSource, Found
from serving.repository.unpacking import BadArchive, _checked_entries, unpack

pytestmark = pytest.mark.unit


def make_tar(path: Path, **files: int) -> Path:
    """Write an archive with files of these sizes."""
    with tarfile.open(path, "w:gz") as tar:
        for name, size in files.items():
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, BytesIO(bytes(size)))
    return path


def test_unpack_an_archive_and_announce_each_size(tmp_path: Path) -> None:
    sizes: list[int] = []
    unpack(make_tar(tmp_path / "a.tar.gz", one=1, two=2), tmp_path / "a", sizes.append)
    assert sizes == [1, 2] and (tmp_path / "a/two").read_bytes() == bytes(2)


def test_refuse_more_files_than_allowed(tmp_path: Path) -> None:
    with (
        tarfile.open(make_tar(tmp_path / "a.tar.gz", one=1, two=2)) as tar,
        pytest.raises(ValueError, match="more than 1 files"),
    ):
        list(_checked_entries(tar, tmp_path, int, most=1))


def test_refuse_a_file_that_is_larger_than_the_disk(tmp_path: Path) -> None:
    member = tarfile.TarInfo("large")
    member.size = 2**60
    (tmp_path / "a.tar").write_bytes(member.tobuf())
    with pytest.raises(BadArchive, match="bytes free on the disk"):
        unpack(tmp_path / "a.tar", tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_say_how_to_make_an_archive(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"not an archive")
    with pytest.raises(BadArchive, match=r"a\.tar\.gz cannot .*; make it with tar czf"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "a")


def source_of(folder: Path, most: int = 0) -> FolderSource:
    return FolderSource(folder / "models", Cache(folder / "unpacked", most, list))


def found(source: FolderSource) -> Found:
    archive = source.find("m")
    assert archive
    return archive


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Make the archive of a model `m`."""
    (tmp_path / "models").mkdir()
    return make_tar(tmp_path / "models/m.tar.gz", **{"config.pbtxt": 0, "1/model.onnx": 10_000})


def test_leave_nothing_of_an_archive_for_which_there_is_no_space(
    tmp_path: Path, archive: Path
) -> None:
    source = source_of(tmp_path, most=5_000)
    with pytest.raises(BadArchive, match="SERVE_UNPACKED_MB"), source.archive(found(source)):
        pass
    assert list((tmp_path / "unpacked").iterdir()) == []


def test_call_an_archive_by_its_name_in_errors(tmp_path: Path, archive: Path) -> None:
    make_tar(archive, weights=1)
    source = source_of(tmp_path)
    expected = r"^m\.tar\.gz holds no config"
    with pytest.raises(LoadFailed, match=expected), source.archive(found(source)):
        pass


def test_list_model_folders_and_archives_by_their_paths(tmp_path: Path) -> None:
    for name in ("a", "team/b"):
        (tmp_path / name / "1").mkdir(parents=True)
    make_tar(tmp_path / "team/c.tar.gz", weights=1)
    make_tar(tmp_path / ".hidden.tar.gz", weights=1)
    (tmp_path / "circle").symlink_to(tmp_path)
    source = FolderSource(tmp_path, Cache(tmp_path / "unpacked", 0, list))
    size = (tmp_path / "team/c.tar.gz").stat().st_size
    assert source.sizes() == {"a": None, "team/b": None, "team/c": size}


def test_keep_nothing_of_an_archive_that_changes_while_it_is_unpacked(
    tmp_path: Path, archive: Path
) -> None:
    source = source_of(tmp_path)
    before = found(source)
    make_tar(archive, weights=2)
    with pytest.raises(BadArchive, match="was changed"), source.archive(before):
        pass
    assert list((tmp_path / "unpacked").iterdir()) == []


def test_use_an_unpacked_archive_again_after_a_restart(tmp_path: Path, archive: Path) -> None:
    inodes = set()
    for _ in range(2):
        source = source_of(tmp_path)
        with source.archive(found(source)) as unpacked:
            inodes.add((unpacked.folder / "1/model.onnx").stat().st_ino)
        (tmp_path / "unpacked/.unfinished").mkdir()
    assert len(inodes) == 1
