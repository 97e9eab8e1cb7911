"""Sticky sessions of SageMaker, which are sequences in Triton.

    X-Amzn-SageMaker-Session-Id: NEW_SESSION  -> a new id; Triton gets sequence_start
    X-Amzn-SageMaker-Session-Id: ID           -> the next step; Triton refuses an unknown sequence
    the same and sequence_end=true            -> Triton gets sequence_end

No state is kept here: Triton knows its sequences, so any worker can take any request.
"""

import secrets
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from serving.errors import InvalidRequest, SessionNotFound
from serving.headers import CLOSED_SESSION_ID, NEW_SESSION, SESSION_ID
from serving.named_value import INT64, quoted

SEQUENCE_ID, SEQUENCE_START, SEQUENCE_END = "sequence_id", "sequence_start", "sequence_end"
SEQUENCE_PARAMETERS = {SEQUENCE_ID, SEQUENCE_START, SEQUENCE_END}
LONGEST_ID = 19  # digits of 2**63
LONGEST_NAME = 128  # bytes of an id that is a string (correlation_id.h)
WORDS = {"true": True, "1": True, "false": False, "0": False}
# The numbers that are ids, by the datatype of CORRID in config.pbtxt. Triton takes no id as an
# unsigned parameter of gRPC, so none is above INT64.
NUMBERS = {
    "UINT64": range(2**63),
    "INT64": INT64,
    "UINT32": range(2**32),
    "INT32": range(-(2**31), 2**31),
    "BYTES": range(0),
}


@dataclass(frozen=True)
class Sequencing:
    """A model's sequences: the datatypes that must hold their ids, and the seconds after which an
    idle one ends.

    An ensemble has the datatypes of all its parts. Without a datatype, an id is any number or
    string. An id that a datatype does not hold never reaches Triton (quirks.py).
    """

    id_types: frozenset[str]
    idle_seconds: float
    numbers: range = field(init=False)  # the numbers that are ids

    def __post_init__(self) -> None:
        ranges = [INT64, *(NUMBERS[id_type] for id_type in self.id_types)]
        first = max(each.start for each in ranges)
        end = min(each.stop for each in ranges)
        object.__setattr__(self, "numbers", range(first, end))

    @property
    def has_names(self) -> bool:
        """Return whether strings are ids."""
        return self.id_types <= {"BYTES"}

    def new_id(self) -> str:
        """Return a new id, as hard to guess as its datatype allows, and never 0, which means no
        sequence."""
        if self.id_types == {"BYTES"}:
            return secrets.token_hex(LONGEST_NAME // 2)
        if self.has_names:
            return uuid.uuid4().hex
        return str(1 + secrets.randbelow(max(1, self.numbers.stop - 1)))

    def read_text(self, text: str) -> int | str:
        """Return the id in a header. Raise SessionNotFound if this model cannot have made it, and
        InvalidRequest if Triton does not take it."""
        if self.has_names:
            check_id(text)
            if not self._fills(text):
                raise SessionNotFound(text)
            return text
        is_number = text.isascii() and text.isdigit() and len(text) <= LONGEST_ID
        if not is_number or int(text) == 0 or int(text) not in self.numbers:
            raise SessionNotFound(text)
        return int(text)

    def _fills(self, sequence_id: str) -> bool:
        """Return whether a string fills the memory that Triton has for it: the model would read
        what lies behind a shorter one (quirks.py)."""
        return not self.id_types or len(sequence_id.encode()) == LONGEST_NAME

    def read(self, name: str, value: object) -> bool | int | str:
        """Return the value of one of SEQUENCE_PARAMETERS as Triton takes it. Raise
        InvalidRequest."""
        if name != SEQUENCE_ID:
            return read_flag(name, value)
        if type(value) is int and value in self.numbers:
            return value
        if type(value) is str and self.has_names:
            check_id(value)
            if self._fills(value):
                return value
        kinds = [f"a whole number from {self.numbers.start} to {self.numbers.stop - 1}"]
        text = f"a string of {LONGEST_NAME} bytes" if self.id_types else "a string"
        kinds = (kinds if self.numbers else []) + ([text] if self.has_names else [])
        expected = " or ".join(kinds) or "of one type: parts of the ensemble disagree about it"
        raise InvalidRequest(
            f"parameter '{name}' must be {expected}, as the model's sequences have it (CORRID in "
            f"config.pbtxt); got {quoted(value)}"
        )


def read_flag(name: str, value: object) -> bool:
    """Return a flag of a sequence: true or false, 1 or 0, or one of these words. Raise
    InvalidRequest."""
    word = str(value).lower() if isinstance(value, bool | int | str) else ""
    if word not in WORDS:
        raise InvalidRequest(f"'{name}' must be true or false; got {quoted(value)}")
    return WORDS[word]


def check_id(sequence_id: str) -> None:
    """Raise InvalidRequest if the id is longer than Triton takes, or would be cut."""
    if (length := len(sequence_id.encode())) > LONGEST_NAME:
        raise InvalidRequest(
            f"the session's id has {length} bytes, at most {LONGEST_NAME} are allowed"
        )
    if "\0" in sequence_id:
        raise InvalidRequest(
            f"the session's id {quoted(sequence_id)} has a NUL character, where Triton would cut "
            "it; leave the character out"
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
        ends = [
            read_flag(SEQUENCE_END, fields[SEQUENCE_END])
            for fields in maps
            if SEQUENCE_END in fields
        ]
        # callers may send the reply's header back unchanged, with Expires
        name = header.partition(";")[0].strip()
        if not name:
            return None
        if starts := name == NEW_SESSION:
            name = sequencing.new_id()
        sequencing.read_text(name)
        return cls(sequencing, name, starts, any(ends))

    def parameters(
        self, first: bool = True, last: bool = True
    ) -> dict[str, bool | int | float | str]:
        """Return Triton's parameters. `first` and `last` say whether a step is the request's first
        or last."""
        return {
            SEQUENCE_ID: self.sequencing.read_text(self.id),
            SEQUENCE_START: self.starts and first,
            SEQUENCE_END: self.ends and last,
        }

    def headers(self) -> dict[str, str]:
        """Return the reply's headers. Expires is cut to whole seconds, so it is never too late."""
        expires = datetime.now(UTC) + timedelta(seconds=self.sequencing.idle_seconds)
        begun = (
            {SESSION_ID: f"{self.id}; Expires={expires:%Y-%m-%dT%H:%M:%SZ}"} if self.starts else {}
        )
        return begun | ({CLOSED_SESSION_ID: self.id} if self.ends else {})
