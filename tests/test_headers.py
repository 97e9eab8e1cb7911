"""What a header Accept asks for; the reference is RFC 9110's rule: quality first, then the more specific range."""

import pytest

from serving.headers import JSON_TYPE, preferred

pytestmark = pytest.mark.unit

LINES, EVENTS = "application/jsonlines", "text/event-stream"


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", JSON_TYPE),
        ("*/*", JSON_TYPE),
        ("text/html", JSON_TYPE),
        (EVENTS, EVENTS),
        (f"{EVENTS}, */*", EVENTS),
        (f"{JSON_TYPE}, {EVENTS};q=0.1", JSON_TYPE),
        (f"{JSON_TYPE};q=0.1, {EVENTS}", EVENTS),
        (f"{LINES};q=0.5, {EVENTS};q=0.6", EVENTS),
        ("nonsense;;q=x,,", JSON_TYPE),
    ],
)
def test_accept_is_read_by_quality_and_json_is_what_anybody_gets(accept: str, wanted: str) -> None:
    assert preferred(accept, LINES, EVENTS) == wanted
