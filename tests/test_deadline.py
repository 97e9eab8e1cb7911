"""What is left of a request's time, counted from nginx's clock."""

import math
import time

import pytest

from serving.deadline import NEVER, Deadline
from serving.errors import TooLate

pytestmark = pytest.mark.unit


def test_outside_of_a_request_nothing_ends() -> None:
    assert NEVER.left(5.0) == 5.0
    assert NEVER.left(math.inf) == math.inf


def test_what_a_request_has_waited_is_missing_from_its_time() -> None:
    deadline = Deadline.after(10.0, handed_over=time.time() - 3)
    assert 0 < deadline.left(54.0) <= 7.0
    assert deadline.left(1.0) == 1.0


def test_a_request_that_has_waited_too_long_is_refused() -> None:
    with pytest.raises(TooLate, match="SERVE_REQUEST_TIMEOUT"):
        Deadline.after(10.0, handed_over=time.time() - 11).left(5.0)


def test_a_clock_that_was_set_back_gives_no_more_than_all_of_the_time() -> None:
    assert 0 < Deadline.after(10.0, handed_over=time.time() + 1000).left(54.0) <= 10.0
