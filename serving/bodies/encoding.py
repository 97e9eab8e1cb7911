"""Content-Encoding of a request's body: gzip and deflate, never larger than an unpacked body may be."""

import zlib

from serving.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType

PACKED = ("gzip", "x-gzip", "deflate")
DETECT = zlib.MAX_WBITS | 32  # gzip's header or zlib's


def unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """The body as it was before that Content-Encoding ("" or identity: as it is), at most `limit` bytes.

    Raises UnsupportedMediaType, PayloadTooLarge, or InvalidRequest when it is cut short or no such data.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in PACKED:
        raise UnsupportedMediaType(f"Content-Encoding must be gzip, deflate or identity, not '{encoding}'")
    try:
        return _inflated(body, limit)
    except zlib.error as err:
        raise InvalidRequest(f"Content-Encoding is {name}, but the body cannot be unpacked: {err}") from err


def _inflated(body: bytes, limit: int) -> bytes:
    """gzip's data may be several members, one after the other."""
    parts, size = [], 0
    while body:
        member = zlib.decompressobj(DETECT)
        parts.append(member.decompress(body, limit - size + 1))
        size += len(parts[-1])
        if size > limit:
            raise PayloadTooLarge(f"the body unpacks to more than {limit} bytes; SERVE_MAX_BODY_MB sets the limit")
        if not member.eof:
            raise zlib.error("it ends too early")
        body = member.unused_data
    return b"".join(parts)
