"""SageMaker's names of headers, beside those of HTTP, and what Accept asks for."""

from functools import lru_cache

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

JSON_TYPE = "application/json"
EVENT_STREAM, JSON_LINES = "text/event-stream", "application/jsonlines"  # the types of streamed replies

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
TARGET_MODEL = "X-Amzn-SageMaker-Target-Model"
SESSION_ID = "X-Amzn-SageMaker-Session-Id"
CLOSED_SESSION_ID = "X-Amzn-SageMaker-Closed-Session-Id"
NEW_SESSION = "NEW_SESSION"  # a value of SESSION_ID


@lru_cache(maxsize=256)
def preferred(accept: str, *others: str) -> str:
    """Which of application/json and these types a header Accept likes best; JSON where it likes none, or all alike.

    Callers send few different ones, and each is asked about several times a request.
    """
    return parse_accept_header(accept, MIMEAccept).best_match([JSON_TYPE, *others], default=JSON_TYPE)


@lru_cache(maxsize=256)
def streamed_type(accept: str) -> str:
    """Return the type of the stream that Accept asks for, "" if it prefers a reply in one piece or does not care."""
    best = preferred(accept, EVENT_STREAM, JSON_LINES)
    return "" if best == JSON_TYPE else best
