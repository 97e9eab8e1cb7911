"""JSON lines: each is a request of its own, or an instance.

A wrong line gives {"error", "code"} in its place; the others are answered (serving/inference/batch_transform.py).
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass

from serving.budget import Deadline, in_time
from serving.request import Body

JSON_LINES = "application/jsonlines"
LINES_TYPES = (JSON_LINES, "application/x-jsonlines", "application/x-ndjson")


@dataclass(frozen=True)
class JsonLines(Body):
    """Lines of JSON; `generates` is that of a FlatBody."""

    data: bytes
    generates: bool = False

    def by_line(self, accept: str) -> bool:
        return True

    def lines(self, deadline: Deadline) -> Iterator[bytes]:
        """Yield the lines that are not empty, so that a large body is not held twice. Raise TooLate."""
        return (line for line in in_time(io.BytesIO(self.data), deadline) if not line.isspace())
