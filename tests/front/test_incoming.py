"""Read the parts of a request that are not its body."""

import time

import pytest
from werkzeug.test import create_environ

from serving.front.incoming import FORWARDED, Incoming

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("waited", "counted"), [(3.0, 3.0), (-1000.0, 0.0)])
def test_time_in_the_queue_counts_and_a_clock_that_was_set_back_adds_none(waited: float, counted: float) -> None:
    source = Incoming(create_environ(headers={FORWARDED: str(time.time() - waited)}))
    assert source.forwarded == pytest.approx(time.monotonic() - counted, abs=0.5)


def test_a_request_without_nginx_begins_now() -> None:
    assert Incoming(create_environ()).forwarded == pytest.approx(time.monotonic(), abs=0.5)
