"""Unpack archives within bounds."""

import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from serving.repository.unpacking import BadArchive, _bounded, unpack

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
        list(_bounded(tar, 1000, int, most=1))


def test_refuse_a_file_that_is_larger_than_the_disk(tmp_path: Path) -> None:
    member = tarfile.TarInfo("large")
    member.size = 2**60
    (tmp_path / "a.tar").write_bytes(member.tobuf())
    with pytest.raises(BadArchive, match="bytes that are free on the disk"):
        unpack(tmp_path / "a.tar", tmp_path / "a")
    assert not (tmp_path / "a").exists()
