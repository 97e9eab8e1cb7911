"""Decompresses a body that has a Content-Encoding."""

import io
import zlib

from serving.budget import MOST_MEMBERS, check_count, check_time
from serving.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType

PACKED = ("gzip", "x-gzip", "deflate")
DETECT = zlib.MAX_WBITS | 32  # accept a gzip or a zlib header
PIECE = 64 * 1024  # bytes of compressed data that are passed to zlib at a time
INFLATED = 2**20  # bytes that one call decompresses at most, because copying them holds the GIL


def unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """Return the decompressed body. If `encoding` is "" or identity, return it unchanged.

    Raise UnsupportedMediaType if the encoding is not supported, PayloadTooLarge if the decompressed
    body has more than `limit` bytes or if the body has more than MOST_MEMBERS gzip members, and
    InvalidRequest if the data is truncated, damaged, or in neither of the supported formats.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in PACKED:
        raise UnsupportedMediaType(
            f"Content-Encoding must be gzip, deflate or identity, not '{encoding}'"
        )
    rest = memoryview(body)
    content = io.BytesIO()
    members = 0
    try:
        while rest:
            check_time()
            members += 1
            check_count(members, MOST_MEMBERS, "gzip members", "pack the body in one piece")
            rest = rest[_inflate_member(rest, content, limit) :]
    except zlib.error as err:
        raise InvalidRequest(
            f"Content-Encoding is {name}, but the body cannot be unpacked: {err}"
        ) from err
    return content.getvalue()


def _inflate_member(packed: memoryview, content: io.BytesIO, limit: int) -> int:
    """Decompress the first gzip member of `packed`, or its zlib data, append the result to
    `content`, and return the compressed length. Pass the data to zlib in pieces, because zlib
    copies the data that follows the member. Raise PayloadTooLarge if `content` gets longer than
    `limit` bytes, and zlib.error if the data is truncated or damaged."""
    member = zlib.decompressobj(DETECT)
    end = 0
    while not member.eof:
        piece = packed[end : end + PIECE]
        if not piece:
            raise zlib.error("it ends too early")
        content.write(member.decompress(piece, INFLATED))
        if content.tell() > limit:
            raise PayloadTooLarge(
                f"the body unpacks to more than {limit} bytes; SERVE_MAX_BODY_MB sets the limit"
            )
        left = member.unused_data if member.eof else member.unconsumed_tail
        end += len(piece) - len(left)
    return end
