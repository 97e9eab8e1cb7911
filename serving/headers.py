"""SageMaker's header names, what Accept asks for, and sticky sessions, which are sequences in
Triton.

    X-Amzn-SageMaker-Session-Id: NEW_SESSION  -> a new id; Triton gets sequence_start
    X-Amzn-SageMaker-Session-Id: ID           -> the next step; Triton refuses an unknown sequence
    the same and sequence_end=true            -> Triton gets sequence_end

No state is kept here: Triton knows its sequences, so any worker can take any request.
"""

import re
import secrets
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from serving.errors import InvalidRequest, SessionNotFound

JSON_TYPE = "application/json"
# types of other replies
CSV, NPY_TYPE, PICTURES = "text/csv", "application/x-npy", ("image/jpeg", "image/png")
# the types of streamed replies
EVENT_STREAM, JSON_LINES = "text/event-stream", "application/jsonlines"

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
TARGET_MODEL = "X-Amzn-SageMaker-Target-Model"
SESSION_ID = "X-Amzn-SageMaker-Session-Id"
CLOSED_SESSION_ID = "X-Amzn-SageMaker-Closed-Session-Id"
NEW_SESSION = "NEW_SESSION"  # a value of SESSION_ID

SEQUENCE_ID, SEQUENCE_END = "sequence_id", "sequence_end"
LONGEST_ID = 19  # digits of 2**63
LONGEST_NAME = 128  # bytes of an id that is a string (correlation_id.h)
WORDS = {"true": True, "1": True, "false": False, "0": False}
# signed, because gRPC has no unsigned parameters
BITS = {"UINT64": 63, "INT64": 63, "UINT32": 31, "INT32": 31}


@lru_cache(maxsize=256)
def preferred(accept: str, *others: str) -> str:
    """Return which of application/json and these types a header Accept prefers; JSON if it has no
    preference."""
    bare = re.sub(r";\s*(?!q\s*=)[^,;]*", "", accept)  # ours have no parameters but a charset
    return parse_accept_header(bare, MIMEAccept).best_match([JSON_TYPE, *others], default=JSON_TYPE)


@lru_cache(maxsize=256)
def streamed_type(accept: str) -> str:
    """Return the type of the stream that Accept asks for, "" if it prefers a reply in one piece or
    does not care."""
    best = preferred(accept, CSV, *PICTURES, NPY_TYPE, EVENT_STREAM, JSON_LINES)
    return best if best in (EVENT_STREAM, JSON_LINES) else ""


@dataclass(frozen=True)
class Sequencing:
    """A model's sequences: the datatype of their ids, and the seconds after which an idle one
    ends."""

    id_type: str
    idle_seconds: float

    def new_id(self) -> str:
        """Return a new id, as hard to guess as its datatype allows, and never 0, which means no
        sequence."""
        bits = BITS.get(self.id_type)
        return uuid.uuid4().hex if bits is None else str(1 + secrets.randbelow(2**bits - 1))

    def read_id(self, text: str) -> int | str:
        """Return the id as Triton takes it. Raise SessionNotFound if this model cannot have made
        it, and InvalidRequest if it is too long."""
        bits = BITS.get(self.id_type)
        if bits is None:
            check_id(text)
            return text
        if not (
            text.isascii()
            and text.isdigit()
            and len(text) <= LONGEST_ID
            and 0 < int(text) < 2**bits
        ):
            raise SessionNotFound(text)
        return int(text)


def check_id(sequence_id: str) -> None:
    """Raise InvalidRequest if the id is longer than Triton takes."""
    if (length := len(sequence_id.encode())) > LONGEST_NAME:
        raise InvalidRequest(
            f"the session's id has {length} bytes, at most {LONGEST_NAME} are allowed"
        )


@dataclass(frozen=True)
class Session:
    """One request's part of a session: it `starts` the session, `ends` it, both or neither."""

    sequencing: Sequencing
    id: str
    starts: bool = True
    ends: bool = True

    @classmethod
    def of(
        cls, sequencing: Sequencing, header: str, maps: Iterable[Mapping[str, object]]
    ) -> "Session | None":
        """Return the session that the header names, None without a header.
        `maps` are the objects that may have the key `sequence_end`. Raise SessionNotFound or
        InvalidRequest."""
        words = [str(fields[SEQUENCE_END]).lower() for fields in maps if SEQUENCE_END in fields]
        if not WORDS.keys() >= set(words):
            raise InvalidRequest(f"'{SEQUENCE_END}' must be true or false")
        # callers may send the reply's header back unchanged, with Expires
        name = header.partition(";")[0].strip()
        if not name:
            return None
        if starts := name == NEW_SESSION:
            name = sequencing.new_id()
        sequencing.read_id(name)
        return cls(sequencing, name, starts, any(WORDS[word] for word in words))

    def parameters(
        self, first: bool = True, last: bool = True
    ) -> dict[str, bool | int | float | str]:
        """Return Triton's parameters. `first` and `last` say whether a step is the request's first
        or last."""
        return {
            SEQUENCE_ID: self.sequencing.read_id(self.id),
            "sequence_start": self.starts and first,
            SEQUENCE_END: self.ends and last,
        }

    def headers(self) -> dict[str, str]:
        """Return the reply's headers. Expires is cut to whole seconds, so it is never too late."""
        expires = datetime.now(UTC) + timedelta(seconds=self.sequencing.idle_seconds)
        begun = (
            {SESSION_ID: f"{self.id}; Expires={expires:%Y-%m-%dT%H:%M:%SZ}"} if self.starts else {}
        )
        return begun | ({CLOSED_SESSION_ID: self.id} if self.ends else {})
