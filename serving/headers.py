"""Defines the names of headers and media types, and determines which media type the Accept header
prefers."""

import re
from functools import lru_cache

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

JSON_TYPE = "application/json"
# media types of other replies in one piece
CSV = "text/csv"
NPY_TYPE = "application/x-npy"
PICTURES = ("image/jpeg", "image/png")
# media types of streamed replies
EVENT_STREAM = "text/event-stream"
JSON_LINES = "application/jsonlines"
LIBSVM = ("text/libsvm", "text/x-libsvm")  # media types of bodies only

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
TARGET_MODEL = "X-Amzn-SageMaker-Target-Model"
SESSION_ID = "X-Amzn-SageMaker-Session-Id"
CLOSED_SESSION_ID = "X-Amzn-SageMaker-Closed-Session-Id"
TRUNCATED = "X-Truncated"  # its value is the number of texts that were truncated
NEW_SESSION = "NEW_SESSION"  # the value of SESSION_ID that starts a session


@lru_cache(maxsize=256)
def preferred(accept: str, *others: str) -> str:
    """Return the media type that the Accept header prefers among application/json and `others`.
    Return application/json if it has no preference."""
    # remove all parameters except q, because the types that we offer have none except charset
    bare = re.sub(r";\s*(?!q\s*=)[^,;]*", "", accept)
    return parse_accept_header(bare, MIMEAccept).best_match([JSON_TYPE, *others], default=JSON_TYPE)


@lru_cache(maxsize=256)
def wants_other_picture(accept: str) -> bool:
    """Return whether the Accept header lists only types of images, none of which matches one of
    PICTURES."""
    types = [media_type for media_type, _ in parse_accept_header(accept, MIMEAccept)]
    are_images = bool(types) and all(media_type.startswith("image/") for media_type in types)
    return are_images and preferred(accept, *PICTURES) == JSON_TYPE


@lru_cache(maxsize=256)
def streamed_type(accept: str) -> str:
    """Return the media type of the stream that the Accept header requests, or "" if it prefers a
    reply in one piece or has no preference."""
    best = preferred(accept, CSV, *PICTURES, NPY_TYPE, EVENT_STREAM, JSON_LINES)
    return best if best in (EVENT_STREAM, JSON_LINES) else ""
