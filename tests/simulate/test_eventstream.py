"""Messages as botocore decodes them."""

import json
from typing import Any

import pytest
from botocore.eventstream import ChecksumMismatch, EventStreamBuffer

from simulate.eventstream import failure, part

pytestmark = pytest.mark.unit


def decode(data: bytes) -> list[Any]:
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    return list(buffer)


@pytest.mark.parametrize("payload", [b"", b"one", bytes(range(256)) * 1000])
def test_a_part_is_decoded_as_it_was(payload: bytes) -> None:
    (message,) = decode(part(payload))
    assert message.payload == payload
    assert message.headers[":event-type"] == "PayloadPart"
    assert message.headers[":message-type"] == "event"


def test_messages_follow_each_other() -> None:
    assert [message.payload for message in decode(part(b"a") + part(b"b"))] == [b"a", b"b"]


def test_a_failure_is_an_exception_with_its_code() -> None:
    (message,) = decode(failure("it is over", "StreamBroken"))
    assert message.headers[":exception-type"] == "ModelStreamError"
    assert message.headers[":message-type"] == "exception"
    assert json.loads(message.payload) == {"Message": "it is over", "ErrorCode": "StreamBroken"}


def test_a_byte_that_is_changed_is_noticed() -> None:
    data = bytearray(part(b"payload"))
    data[-6] ^= 1
    with pytest.raises(ChecksumMismatch):
        decode(bytes(data))
