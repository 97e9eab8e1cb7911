"""Messages of `application/vnd.amazon.eventstream`, the encoding of AWS's response streams.

A message: total length, headers' length, CRC-32 of these two, headers, payload, CRC-32 of everything before. Numbers
are big-endian. A header: length of its name (1 byte), name, type (7: a string), length of its value (2 bytes), value.
Source: Amazon Transcribe developer guide, 'Event stream encoding'; botocore.eventstream decodes it.
"""

import json
import struct
from collections.abc import Mapping
from zlib import crc32

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_STRING = b"\x07"
_FRAME = 16  # bytes of a message without its headers and its payload


def part(data: bytes) -> bytes:
    """A PayloadPart: some bytes of the model's reply."""
    return message(
        {":event-type": "PayloadPart", ":content-type": "application/octet-stream", ":message-type": "event"}, data
    )


def failure(kind: str, text: str, code: str = "") -> bytes:
    """The exception that ends a stream: ModelStreamError, which has a code, or InternalStreamFailure."""
    document = {"Message": text} | ({"ErrorCode": code} if code else {})
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return message(headers, json.dumps(document).encode())


def message(headers: Mapping[str, str], payload: bytes) -> bytes:
    encoded = b"".join(_header(name.encode(), value.encode()) for name, value in headers.items())
    prelude = struct.pack("!II", _FRAME + len(encoded) + len(payload), len(encoded))
    body = prelude + struct.pack("!I", crc32(prelude)) + encoded + payload
    return body + struct.pack("!I", crc32(body))


def _header(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + _STRING + struct.pack("!H", len(value)) + value
