"""Regions are lent, reused, bounded, emptied, and forgotten with the Triton that knew them."""

import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.errors import TritonUnavailable
from serving.triton.gateway import TritonGateway
from serving.triton.shared_memory import FOLDER, SharedMemory
from serving.triton.tensors import InferRequest, Tensor

pytestmark = pytest.mark.unit

MEGABYTE = 2**20


def numbers(megabytes: int, value: int = 1) -> NDArray[np.float32]:
    return np.full(megabytes * MEGABYTE // 4, value, np.float32)


class Regions:
    """A SharedMemory, its files, and the regions that were registered with Triton."""

    def __init__(self, limit: int) -> None:
        self.prefix = f"test-{secrets.token_hex(6)}"
        self.registered: list[tuple[str, int]] = []
        self.memory = SharedMemory(
            self.prefix, limit, lambda *region: self.registered.append(region)
        )

    def files(self) -> list[Path]:
        return sorted(FOLDER.glob(f"{self.prefix}-*"))

    def bytes_taken(self) -> int:
        return sum(512 * file.stat().st_blocks for file in self.files())


@pytest.fixture
def regions() -> Iterator[Regions]:
    fresh = Regions(limit=8 * MEGABYTE)
    yield fresh
    fresh.memory.remove_files()
    assert fresh.files() == []


def test_put_a_large_array_into_a_private_registered_file(regions: Regions) -> None:
    array = np.arange(3 * MEGABYTE // 4, dtype=np.int32).reshape(3, -1)
    written = regions.memory.write([Tensor.of("x", array)])
    (file,) = regions.files()
    assert regions.registered == [(file.name, 4 * MEGABYTE)]
    assert written["x"].name == file.name
    assert file.read_bytes()[: array.nbytes] == array.tobytes()
    assert file.stat().st_mode & 0o777 == 0o600


def test_send_small_arrays_over_grpc(regions: Regions) -> None:
    gateway = TritonGateway("unix:/nonexistent", timeout=1.0)
    gateway.shared_memory = regions.memory
    for array, files in ((np.zeros(100, np.float32), 0), (numbers(1), 1)):
        request = InferRequest("model", "", (Tensor.of("x", array),))
        gateway.infer(request)
        assert len(regions.files()) == files


def test_reuse_a_returned_region_but_never_one_in_use(regions: Regions) -> None:
    first = regions.memory.write([Tensor.of("x", numbers(2))])
    second = regions.memory.write([Tensor.of("x", numbers(2))])
    assert first["x"] is not second["x"]
    regions.memory.give_back(first.values())
    assert regions.memory.write([Tensor.of("x", numbers(1))])["x"] is first["x"]
    assert len(regions.registered) == 2


def test_send_arrays_beyond_the_limit_over_grpc(regions: Regions) -> None:
    written = [regions.memory.write([Tensor.of("x", numbers(3))]) for _ in range(3)]
    assert [len(each) for each in written] == [1, 1, 0]
    assert len(regions.files()) == 2
    assert regions.memory.write([Tensor.of("x", numbers(9))]) == {}


def test_send_arrays_over_grpc_if_dev_shm_is_full(
    regions: Regions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert regions.memory.write([Tensor.of("x", numbers(2))]) == {}
    assert regions.files() == []


def test_leave_no_file_if_triton_is_down() -> None:
    def refuse(name: str, size: int) -> None:
        raise TritonUnavailable("it is gone")

    memory = SharedMemory(prefix := f"test-{secrets.token_hex(6)}", 8 * MEGABYTE, refuse)
    assert memory.write([Tensor.of("x", numbers(2))]) == {}
    assert list(FOLDER.glob(f"{prefix}-*")) == []


def test_empty_idle_regions_that_no_call_may_still_read(regions: Regions) -> None:
    answered, given_up, lent = (
        regions.memory.write([Tensor.of("x", numbers(2))]) for _ in range(3)
    )
    regions.memory.give_back(answered.values())
    regions.memory.give_back(given_up.values(), late=True)
    regions.memory.trim()
    assert regions.bytes_taken() == 4 * MEGABYTE
    assert (FOLDER / lent["x"].name).read_bytes() == numbers(2).tobytes()
    again = regions.memory.write([Tensor.of("x", numbers(1, 5))])["x"]
    assert (FOLDER / again.name).read_bytes()[:MEGABYTE] == numbers(1, 5).tobytes()


def test_never_reuse_regions_of_a_previous_triton(regions: Regions) -> None:
    free, lent, other = (regions.memory.write([Tensor.of("x", numbers(1))]) for _ in range(3))
    regions.memory.give_back(free.values())
    regions.memory.forget(lent.values())
    fresh = regions.memory.write([Tensor.of("x", numbers(1))])
    regions.memory.forget(other.values())  # another call that finds out later
    regions.memory.give_back([*lent.values(), *fresh.values()])
    assert regions.memory.write([Tensor.of("x", numbers(1))])["x"] is fresh["x"]
    regions.memory.write([Tensor.of("x", numbers(1))])
    assert len({name for name, _ in regions.registered}) == 5


def test_replace_emptied_regions_whose_files_are_gone(regions: Regions) -> None:
    regions.memory.give_back(regions.memory.write([Tensor.of("x", numbers(2))]).values())
    regions.memory.trim()
    regions.files()[0].unlink()
    assert regions.memory.write([Tensor.of("x", numbers(2))]) == {}
    assert len(regions.memory.write([Tensor.of("x", numbers(2))])) == 1


def test_remove_the_files_of_an_ended_worker_and_no_others(regions: Regions) -> None:
    regions.memory.write([Tensor.of("x", numbers(2))])
    other = FOLDER / f"{regions.prefix}-1-other"
    other.touch()
    regions.memory.remove_files(os.getpid())
    assert regions.files() == [other]
