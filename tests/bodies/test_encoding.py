"""Bodies that come packed: unpacked, bounded, and refused when they cannot be."""

import gzip
import zlib

import pytest

from serving.bodies.reading import unpacked
from serving.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType

pytestmark = pytest.mark.unit

BODY = b'{"inputs": []}' * 100
LIMIT = len(BODY)


def packed(data: bytes) -> bytes:
    """Pack without the time, which would be in the name of a test."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize("encoding", ["", "identity", " Identity "])
def test_a_body_without_an_encoding_stays_as_it_is(encoding: str) -> None:
    assert unpacked(b"\x1f\x8b", encoding, LIMIT) == b"\x1f\x8b"


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", packed(BODY)),
        ("GZIP", packed(BODY)),
        ("x-gzip", packed(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("gzip", packed(BODY[:500]) + packed(BODY[500:])),
    ],
)
def test_what_was_packed_comes_out_up_to_the_very_limit(encoding: str, data: bytes) -> None:
    assert unpacked(data, encoding, LIMIT) == BODY


def test_nothing_packed_is_nothing() -> None:
    assert unpacked(packed(b""), "gzip", LIMIT) == b""
    assert unpacked(b"", "gzip", LIMIT) == b""


@pytest.mark.parametrize("data", [packed(BODY), packed(BODY[:700]) * 2 + packed(b"1"), packed(bytes(10**8))])
def test_a_byte_more_than_the_limit_is_too_large(data: bytes) -> None:
    with pytest.raises(PayloadTooLarge):
        unpacked(data, "gzip", LIMIT - 1)


@pytest.mark.parametrize("data", [b"hello", packed(BODY)[:-9], packed(BODY) + b"rest", BODY])
def test_what_cannot_be_unpacked_is_the_caller_s_mistake(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        unpacked(data, "gzip", LIMIT * 10)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "none"])
def test_an_unknown_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        unpacked(BODY, encoding, LIMIT)
