"""Encodes messages in `application/vnd.amazon.eventstream`, the format of AWS's response streams.

A message consists of its total length, the length of its headers, a CRC-32 of these two lengths,
the headers, the payload, and a CRC-32 of everything before. Numbers are big-endian. The format is
described in the Amazon Transcribe developer guide, 'Event stream encoding'. botocore.eventstream
decodes such messages.
"""

import json
import struct
from collections.abc import Mapping
from zlib import crc32

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_STRING = b"\x07"  # the type of a header's value
_FRAME = 16  # bytes of a message besides its headers and its payload


def part(data: bytes) -> bytes:
    """Encode a piece of the model's reply as a PayloadPart."""
    kind = {
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
        ":message-type": "event",
    }
    return message(kind, data)


def failure(text: str, code: str) -> bytes:
    """Encode an error as a ModelStreamError, with which a stream ends."""
    headers = {
        ":exception-type": "ModelStreamError",
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    return message(headers, json.dumps({"Message": text, "ErrorCode": code}).encode())


def message(headers: Mapping[str, str], payload: bytes) -> bytes:
    encoded = b"".join(_header(name.encode(), value.encode()) for name, value in headers.items())
    total = _FRAME + len(encoded) + len(payload)
    prelude = struct.pack("!II", total, len(encoded))
    body = prelude + struct.pack("!I", crc32(prelude)) + encoded + payload
    return body + struct.pack("!I", crc32(body))


def _header(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + _STRING + struct.pack("!H", len(value)) + value
