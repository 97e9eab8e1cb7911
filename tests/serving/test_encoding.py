"""Bodies that come packed: unpacked, bounded, and refused when they cannot be."""

import gzip
import zlib

import pytest

from serving.encoding import unpacked
from serving.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType

BODY = b'{"inputs": []}' * 100
LIMIT = len(BODY)


@pytest.mark.parametrize("encoding", ["", "identity", " Identity "])
def test_a_body_without_an_encoding_stays_as_it_is(encoding: str) -> None:
    assert unpacked(b"\x1f\x8b", encoding, LIMIT) == b"\x1f\x8b"


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", gzip.compress(BODY)),
        ("GZIP", gzip.compress(BODY)),
        ("x-gzip", gzip.compress(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("gzip", gzip.compress(BODY[:500]) + gzip.compress(BODY[500:])),
    ],
)
def test_what_was_packed_comes_out_up_to_the_very_limit(encoding: str, data: bytes) -> None:
    assert unpacked(data, encoding, LIMIT) == BODY


def test_nothing_packed_is_nothing() -> None:
    assert unpacked(gzip.compress(b""), "gzip", LIMIT) == b""
    assert unpacked(b"", "gzip", LIMIT) == b""


@pytest.mark.parametrize(
    "data", [gzip.compress(BODY), gzip.compress(BODY[:700]) * 2 + gzip.compress(b"1"), gzip.compress(bytes(10**8))]
)
def test_a_byte_more_than_the_limit_is_too_large(data: bytes) -> None:
    with pytest.raises(PayloadTooLarge):
        unpacked(data, "gzip", LIMIT - 1)


@pytest.mark.parametrize("data", [b"hello", gzip.compress(BODY)[:-9], gzip.compress(BODY) + b"rest", BODY])
def test_what_cannot_be_unpacked_is_the_caller_s_mistake(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="cannot be unpacked"):
        unpacked(data, "gzip", LIMIT * 10)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "none"])
def test_an_unknown_encoding_is_named_with_those_that_are_known(encoding: str) -> None:
    with pytest.raises(UnsupportedMediaType, match="gzip, deflate or identity"):
        unpacked(BODY, encoding, LIMIT)
