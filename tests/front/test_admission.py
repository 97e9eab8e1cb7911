"""Tests that requests and the memory that they take are limited over all workers, in total and per
model."""

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack
from copy import copy

import pytest

from predictor import create_app
from serving.errors import Overloaded, PayloadTooLarge
from serving.front.admission import Admission, Slot
from serving.model_status.shared_files import TOTAL
from serving.request_memory import open_account, reserve
from serving.settings.settings import Settings

pytestmark = pytest.mark.unit

COLUMNS = {
    "m": 0,
    "sound": 1,
    "hangs": 2,
    "another": 3,
    **{f"hangs {number}": 4 + number for number in range(4)},
}
MB = 2**20
MOST_BYTES = 1000 * MB


@pytest.fixture
def held() -> Iterator[ExitStack]:
    """Collect the slots that a test takes, and release them at its end."""
    with ExitStack() as stack:
        yield stack


def fork(shared: Admission, number: int) -> Admission:
    """Return a new worker. Like a forked process, it shares only the counters."""
    shared.add_worker(number)
    return copy(shared)


def use(admission: Admission, model: str, held: ExitStack, size: int = 0) -> Slot:
    slot = admission.enter(size)
    try:
        slot.keep(model, COLUMNS[model])
    except Overloaded:
        slot.leave()
        raise
    return held.enter_context(slot)


def fill(admission: Admission, model: str, held: ExitStack, size: int = 0) -> int:
    """Take slots for the model until one is refused. Return the number of slots taken."""
    count = 0
    while True:
        try:
            use(admission, model, held, size)
        except Overloaded:
            return count
        count += 1


@pytest.mark.parametrize(("hanging", "gets"), [(1, [60]), (2, [60, 30]), (4, [60, 30, 15, 8])])
def test_give_each_hanging_model_half_of_the_free_slots(
    hanging: int, gets: list[int], held: ExitStack
) -> None:
    admission = Admission(120, MOST_BYTES, several_models=True)
    assert [fill(admission, f"hangs {number}", held) for number in range(hanging)] == gets
    assert fill(admission, "sound", held) >= gets[-1] // 2


def test_give_each_hanging_model_half_of_the_free_bytes(held: ExitStack) -> None:
    admission = Admission(120, MOST_BYTES, several_models=True)
    assert [fill(admission, f"hangs {number}", held, size=10 * MB) for number in range(3)] == [
        51,
        25,
        13,
    ]


def test_give_a_single_model_all_slots_and_bytes(held: ExitStack) -> None:
    assert fill(Admission(5, MOST_BYTES, several_models=False), "m", held) == 5
    assert fill(Admission(50, MOST_BYTES, several_models=False), "m", held, size=100 * MB) == 10


def test_accept_the_largest_body_if_no_other_is_in_flight(held: ExitStack) -> None:
    admission = Admission(120, MOST_BYTES, several_models=True)
    use(admission, "m", held, MOST_BYTES)
    held.enter_context(admission.enter(0))
    with pytest.raises(Overloaded):
        admission.enter(MB)
    held.enter_context(admission.enter(MB - 1))


def test_count_the_unpacked_size_of_a_body(held: ExitStack) -> None:
    admission = Admission(2, MOST_BYTES, several_models=False)
    slot = held.enter_context(admission.enter(10 * MB))
    slot.take(890 * MB, "the unpacked body")
    slot.keep("m", 0)
    with pytest.raises(Overloaded, match=f"{100 * MB} .* {900 * MB} of {MOST_BYTES}"):
        held.enter_context(admission.enter(10 * MB)).take(100 * MB, "the unpacked body")
    assert (admission.leases.bytes(0), admission.leases.requests(TOTAL)) == (900 * MB, 2)


def test_refuse_a_step_that_no_request_may_take(held: ExitStack) -> None:
    slot = held.enter_context(Admission(2, MOST_BYTES, several_models=False).enter(10 * MB))
    with pytest.raises(PayloadTooLarge, match=f"the form .* {995 * MB} .* {1005 * MB}"):
        slot.take(995 * MB, "the form")
    slot.take(990 * MB, "the form")


def test_count_many_small_steps(held: ExitStack) -> None:
    admission = Admission(10, MOST_BYTES, several_models=False)
    slot = held.enter_context(admission.enter(0))
    for _ in range(100):
        slot.take(MB // 2, "a line")
    assert abs(admission.leases.bytes(TOTAL) - 50 * MB) <= MB
    for _ in range(100):
        slot.give_back(MB // 2)
    assert abs(admission.leases.bytes(TOTAL)) <= MB
    slot.leave()
    assert admission.leases.bytes(TOTAL) == 0


def test_give_back_what_a_step_took(held: ExitStack) -> None:
    admission = Admission(2, MOST_BYTES, several_models=False)
    slot = held.enter_context(admission.enter(0))
    slot.keep("m", 0)
    open_account(slot)
    with reserve(900 * MB, "a step") as reserved:
        reserved.shrink(300 * MB)
        assert admission.leases.bytes(TOTAL) == 300 * MB
    small = reserve(MB - 1, "a small step")
    assert (small.size > 0, admission.leases.bytes(TOTAL)) == (True, 0)
    reserved = reserve(MB, "a step")
    assert admission.freed == 900 * MB
    slot.leave()
    reserved.shrink()
    open_account(None)
    assert (admission.leases.bytes(TOTAL), admission.freed) == (0, 902 * MB - 1)


def test_free_slots_and_bytes_after_an_error(held: ExitStack) -> None:
    admission = Admission(2, MOST_BYTES, several_models=True)
    for _ in range(3):
        with pytest.raises(KeyError), admission.enter(900 * MB) as slot:
            slot.keep("m", 0)
            raise KeyError
    assert admission.leases.last_use(0) > 0


def test_limit_the_total_over_all_workers() -> None:
    shared = Admission(3, MOST_BYTES, several_models=False, workers=3)
    first, second = fork(shared, 7), fork(shared, 8)
    _, _, slot = first.enter(0), first.enter(0), second.enter(0)
    with pytest.raises(Overloaded):
        second.enter(0)
    assert shared.leases.requests(TOTAL) == 3
    slot.leave()
    first.enter(0)
    assert first.last_active > 0


def test_limit_the_slots_of_a_model_over_all_workers(held: ExitStack) -> None:
    shared = Admission(5, MOST_BYTES, several_models=True, workers=2)
    for number in range(2):
        use(fork(shared, number), "hangs", held)
    assert fill(shared, "hangs", held) == 1
    use(shared, "another", held)


def test_forget_the_requests_of_an_ended_worker() -> None:
    shared = Admission(2, MOST_BYTES, several_models=True, workers=2)
    use(fork(shared, 7), "m", ExitStack(), MOST_BYTES)
    shared.remove_worker(7)
    assert (shared.leases.requests(TOTAL), shared.leases.bytes(0)) == (0, 0)
    fork(shared, 8).enter(MOST_BYTES)


def test_refuse_and_count_a_body_too_large_for_the_memory() -> None:
    app = create_app(Settings.from_env({}))
    services, client = app.extensions["serving"], app.test_client()
    services.admission.most_bytes = 3 * MB
    other = services.admission.enter(2 * MB)
    packed = gzip.compress(json.dumps({"instances": ["x" * 2 * MB]}).encode())
    replies = [
        client.post("/invocations", data=b"x" * 2 * MB),
        client.post("/invocations", data=packed, headers={"Content-Encoding": "gzip"}),
    ]
    other.leave()
    assert [(reply.status_code, (reply.json or {}).get("code")) for reply in replies] == [
        (503, "overloaded"),
        (413, "payload_too_large"),
    ]
    assert client.get("/metrics").status_code == 200
    assert (services.admission.leases.requests(TOTAL), services.admission.leases.bytes(TOTAL)) == (
        0,
        0,
    )
    assert (
        b'serve_requests_total{code="503",model="",version=""} 1.0' in client.get("/metrics").data
    )
