"""JSON lines: each is a request of its own, or an instance.

A line that is wrong gives {"error", "code"} in its place and spoils no other (serving/inference/batch_transform.py).
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from serving.decoding import Decoder
from serving.errors import NotAcceptable
from serving.request import Batch, Body, Reply, Request
from serving.served_model import ServedModel
from serving.sessions import Session

JSON_LINES = "application/jsonlines"
LINES_TYPES = (JSON_LINES, "application/x-jsonlines", "application/x-ndjson")


@dataclass(frozen=True)
class JsonLines(Body):
    """The lines; `generates` as a FlatBody has it."""

    data: bytes
    generates: bool = False

    def lines(self) -> Iterator[bytes]:
        """One after the other: a large body is not held a second time. Empty ones are skipped."""
        return (line for line in io.BytesIO(self.data) if not line.isspace())

    def batches(
        self, served: ServedModel, request: Request, session: Session | None, decoder: Decoder
    ) -> Iterator[Batch]:
        raise NotAcceptable("JSON lines are answered line by line, not as a stream: send the requests one by one")

    def reply(self, served: ServedModel, request: Request, results: Sequence[bytes], version: str) -> Reply:
        """`results` are the lines."""
        return Reply(b"".join(results), JSON_LINES, version)

    def line(self, served: ServedModel, result: Any, version: str) -> bytes:
        return orjson.dumps(result)
