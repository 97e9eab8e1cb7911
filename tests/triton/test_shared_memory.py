"""Tests that regions are lent, reused, limited and emptied, and forgotten when the Triton that knew
them is gone."""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from serving.errors import TritonTimeout, TritonUnavailable
from serving.triton.connection import NOT_CONNECTED
from serving.triton.gateway import Call, TritonGateway
from serving.triton.quirks import UNKNOWN_REGION
from serving.triton.shared_memory import FOLDER, MOST_WAITING, Region, SharedMemory
from serving.triton.tensors import InferRequest, Tensor
from tests.triton.test_gateway import Failure

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

    def write(self, megabytes: int, value: int = 1) -> dict[str, Region]:
        """Write one input of the model `m`, full of this number."""
        return self.memory.write("m", [Tensor.of("x", numbers(megabytes, value))])

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
    written = regions.memory.write("m", [Tensor.of("x", array)])
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
    first = regions.write(2)
    second = regions.write(2)
    assert first["x"] is not second["x"]
    regions.memory.give_back(first.values())
    assert regions.write(1)["x"] is first["x"]
    assert len(regions.registered) == 2


def test_send_arrays_beyond_the_limit_over_grpc(regions: Regions) -> None:
    written = [regions.write(3) for _ in range(3)]
    assert [len(each) for each in written] == [1, 1, 0]
    assert len(regions.files()) == 2
    assert regions.write(9) == {}


def test_leave_no_file_if_triton_is_down() -> None:
    def refuse(name: str, size: int) -> None:
        raise TritonUnavailable("it is gone")

    memory = SharedMemory(prefix := f"test-{secrets.token_hex(6)}", 8 * MEGABYTE, refuse)
    assert memory.write("m", [Tensor.of("x", numbers(2))]) == {}
    assert list(FOLDER.glob(f"{prefix}-*")) == []


def test_empty_only_free_regions(regions: Regions) -> None:
    free, lent = (regions.write(2) for _ in range(2))
    regions.memory.give_back(free.values())
    regions.memory.trim()
    assert regions.bytes_taken() == 2 * MEGABYTE
    assert (FOLDER / lent["x"].name).read_bytes() == numbers(2).tobytes()
    again = regions.write(1, 5)["x"]
    assert (FOLDER / again.name).read_bytes()[:MEGABYTE] == numbers(1, 5).tobytes()


def test_bound_waiting_regions_for_each_model(regions: Regions) -> None:
    inputs = [Tensor.of(str(number), numbers(1)) for number in range(MOST_WAITING)]
    regions.memory = SharedMemory(regions.prefix, 2 * MOST_WAITING * MEGABYTE, lambda *_: None)
    lent = regions.memory.write("hangs", inputs)
    assert len(lent) == MOST_WAITING
    regions.memory.mark_waiting("hangs", lent.values())
    assert regions.memory.write("hangs", inputs[:1]) == {}
    other = regions.memory.write("other", inputs[:1])
    assert other["0"] not in lent.values()
    regions.memory.trim()
    assert regions.bytes_taken() == (MOST_WAITING + 1) * MEGABYTE
    regions.memory.give_back([lent["3"]])
    assert regions.memory.write("hangs", inputs[:1])["0"] is lent["3"]


class Answer:
    """A call that is answered when the test says so. It behaves like gRPC's futures."""

    def __init__(self) -> None:
        self.error: grpc.RpcError | None = None
        self._is_done = False
        self._callbacks: list[Callable[[Any], None]] = []

    def arrive(self) -> None:
        self._is_done = True
        for callback in self._callbacks:
            callback(self)

    def done(self) -> bool:
        return self._is_done

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self._is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def result(self, timeout: float) -> Any:
        if not self._is_done:
            raise grpc.FutureTimeoutError
        if self.error:
            raise self.error
        return service_pb2.ModelInferResponse()


class Infer:
    """A stub's method that records the messages, and the deadlines of those that were sent
    ahead."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.messages: list[Any] = []
        self.deadlines: list[float | None] = []

    def future(self, message: Any, timeout: float | None, metadata: Any) -> Answer:
        self.answers.append(Answer())
        self.deadlines.append(timeout)
        return self.answers[-1]

    def __call__(self, message: Any, timeout: float | None, metadata: Any) -> Any:
        self.messages.append(message)
        return service_pb2.ModelInferResponse()


def gateway_to(regions: Regions) -> tuple[TritonGateway, Infer]:
    """Return a gateway with these regions, and the stand-in for its Triton."""
    gateway, infer = TritonGateway("unix:/nonexistent", timeout=1.0), Infer()
    gateway.shared_memory = regions.memory
    gateway.__dict__["stub"] = SimpleNamespace(ModelInfer=infer)
    return gateway, infer


def call_of(gateway: TritonGateway) -> Call:
    return gateway.infer(InferRequest("m", "", (Tensor.of("x", numbers(2)),)))


def lendable(regions: Regions) -> set[str]:
    """Return the names of the regions that other calls can get."""
    inputs = [Tensor.of(str(number), numbers(2)) for number in range(4)]
    written = regions.memory.write("other", inputs).values()
    regions.memory.give_back(written)
    return {region.name for region in written}


@pytest.mark.parametrize("steps", [*permutations(["leave", "answer", "forget"])], ids=" ".join)
@pytest.mark.parametrize("leave", [Call.result, Call.close])
def test_reuse_a_region_only_after_triton_has_answered(
    regions: Regions, steps: tuple[str, ...], leave: Callable[[Call], Any]
) -> None:
    gateway, infer = gateway_to(regions)
    call = call_of(gateway)
    (file,) = regions.files()
    call.send()
    (answer,) = infer.answers
    for number, step in enumerate(steps):
        if step == "leave":
            with contextlib.suppress(TritonTimeout):
                leave(call)
        elif step == "answer":
            answer.arrive()
        else:
            other = regions.write(1)
            regions.memory.forget(other.values())
        past = steps[: number + 1]
        is_free = {"leave", "answer"}.issubset(past) and "forget" not in past
        assert (file.name in lendable(regions)) is is_free, step
    assert infer.deadlines == [None]


def test_never_reuse_the_region_of_an_unanswered_call(regions: Regions) -> None:
    gateway, _ = gateway_to(regions)
    call = call_of(gateway)
    (file,) = regions.files()
    with pytest.raises(TritonTimeout):
        call.result()
    call.close()
    regions.memory.trim()
    assert file.name not in lendable(regions)
    assert file.read_bytes() == numbers(2).tobytes()


def test_free_the_region_of_a_call_that_was_not_sent_at_once(regions: Regions) -> None:
    gateway, _ = gateway_to(regions)
    call = call_of(gateway)
    (file,) = regions.files()
    call.close()
    call.close()
    assert file.name in lendable(regions)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (grpc.StatusCode.UNAVAILABLE, f"{NOT_CONNECTED}; last error: no such file"),
        (grpc.StatusCode.INVALID_ARGUMENT, f"{UNKNOWN_REGION}: 'x'"),
    ],
)
def test_send_no_regions_when_a_call_is_repeated_with_a_new_triton(
    regions: Regions, code: grpc.StatusCode, details: str
) -> None:
    gateway, infer = gateway_to(regions)
    call = call_of(gateway)
    call.send()
    (answer,) = infer.answers
    answer.error = Failure(code, details)
    answer.arrive()
    assert call.result().outputs == ()
    (message,) = infer.messages
    assert message.raw_input_contents == [numbers(2).tobytes()]
    gateway.close()


def test_never_reuse_regions_of_a_previous_triton(regions: Regions) -> None:
    free, lent, other = (regions.write(1) for _ in range(3))
    regions.memory.give_back(free.values())
    regions.memory.forget(lent.values())
    fresh = regions.write(1)
    regions.memory.forget(other.values())  # another call finds this out later
    regions.memory.give_back([*lent.values(), *fresh.values()])
    assert regions.write(1)["x"] is fresh["x"]
    regions.write(1)
    assert len({name for name, _ in regions.registered}) == 5


def test_replace_emptied_regions_whose_files_are_gone(regions: Regions) -> None:
    regions.memory.give_back(regions.write(2).values())
    regions.memory.trim()
    regions.files()[0].unlink()
    assert regions.write(2) == {}
    assert len(regions.write(2)) == 1


def test_remove_the_files_of_an_ended_worker_and_no_others(regions: Regions) -> None:
    regions.write(2)
    other = FOLDER / f"{regions.prefix}-1-other"
    other.touch()
    regions.memory.remove_files(os.getpid())
    assert regions.files() == [other]
