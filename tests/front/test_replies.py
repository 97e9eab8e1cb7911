"""When a streamed reply is over."""

import pytest

from serving.front.replies import Ending

pytestmark = pytest.mark.unit


def test_a_stream_is_closed_once_when_its_last_part_is_made_before_its_end_is_sent() -> None:
    closed: list[str] = []
    response = Ending(iter([b"one", b"two"]))
    response.call_on_close(lambda: closed.append("closed"))
    parts = response.iter_encoded()
    assert (next(parts), next(parts), closed) == (b"one", b"two", [])
    assert (next(parts, None), closed) == (None, ["closed"])
    response.close()
    assert closed == ["closed"]


def test_a_stream_whose_caller_leaves_is_closed_too() -> None:
    closed: list[str] = []
    response = Ending(iter([b"one", b"two"]))
    response.call_on_close(lambda: closed.append("closed"))
    next(response.iter_encoded())
    response.close()
    assert closed == ["closed"]
