"""What is left of a request's time, counted from nginx's clock."""

import math
import time
from collections.abc import Iterator

import pytest

from serving.errors import TooLate
from serving.inference.deadline import begin, left


@pytest.fixture(autouse=True)
def afterwards() -> Iterator[None]:
    """The next test is of no request."""
    yield
    begin(None, 1.0)


def test_outside_of_a_request_nothing_ends() -> None:
    assert left(5.0) == 5.0
    assert left(math.inf) == math.inf


def test_what_a_request_has_waited_is_missing_from_its_time() -> None:
    begin(time.time() - 3, 10.0)
    assert left(54.0) == pytest.approx(7.0, abs=0.5)
    assert left(1.0) == 1.0


def test_a_request_that_has_waited_too_long_is_refused_at_once() -> None:
    with pytest.raises(TooLate, match="SERVE_REQUEST_TIMEOUT"):
        begin(time.time() - 11, 10.0)
    with pytest.raises(TooLate):
        left(5.0)


def test_a_clock_that_was_set_back_gives_no_more_than_all_of_the_time() -> None:
    begin(time.time() + 1000, 10.0)
    assert left(54.0) == pytest.approx(10.0, abs=0.5)


def test_the_next_request_of_a_thread_has_its_own_time() -> None:
    with pytest.raises(TooLate):
        begin(time.time() - 11, 10.0)
    begin(None, 10.0)
    assert left(5.0) == 5.0
