"""SageMaker's sticky sessions, which are sequences in Triton.

    X-Amzn-SageMaker-Session-Id: NEW_SESSION  -> a new id; Triton gets sequence_start
    X-Amzn-SageMaker-Session-Id: ID           -> the next step; Triton refuses an unknown sequence
    the same and sequence_end=true            -> Triton gets sequence_end

The workers keep no state: Triton knows its sequences, so any worker can answer any request.
"""

import secrets
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

from serving.errors import InvalidRequest, SessionNotFound
from serving.headers import CLOSED_SESSION_ID, NEW_SESSION, SESSION_ID
from serving.named_value import INT64, quoted, whole_number

SEQUENCE_ID = "sequence_id"
SEQUENCE_START = "sequence_start"
SEQUENCE_END = "sequence_end"
SEQUENCE_PARAMETERS = {SEQUENCE_ID, SEQUENCE_START, SEQUENCE_END}
LONGEST_NAME = 128  # bytes of an id that is a string (Triton's correlation_id.h)
WORDS = {"true": True, "1": True, "false": False, "0": False}
# The numbers that are valid ids, keyed by the datatype of CORRID in config.pbtxt. Triton does not
# accept an id as an unsigned gRPC parameter, so none exceeds INT64.
NUMBERS = {
    "UINT64": range(2**63),
    "INT64": INT64,
    "UINT32": range(2**32),
    "INT32": range(-(2**31), 2**31),
    "BYTES": range(0),
}


@dataclass(frozen=True)
class Sequencing:
    """Describes a model's sequences: the datatypes that must be able to hold their ids, and how
    many seconds a sequence may be idle before Triton ends it.

    An ensemble has the datatypes of all its parts. If there are none, an id may be any number or
    string. An id that does not fit a datatype is never sent to Triton (quirks.py).
    """

    id_types: frozenset[str]
    idle_seconds: float

    @cached_property
    def numbers(self) -> range:
        """Return the numbers that are valid ids."""
        ranges = [INT64, *(NUMBERS[id_type] for id_type in self.id_types)]
        first = max(each.start for each in ranges)
        end = min(each.stop for each in ranges)
        return range(first, end)

    @property
    def has_names(self) -> bool:
        """Return whether ids may be strings."""
        return self.id_types <= {"BYTES"}

    def new_id(self) -> str:
        """Return a new id, as hard to guess as its datatype allows. It is never 0, which to Triton
        means no sequence."""
        if self.id_types == {"BYTES"}:
            return secrets.token_hex(LONGEST_NAME // 2)
        if self.has_names:
            return uuid.uuid4().hex
        return str(1 + secrets.randbelow(max(1, self.numbers.stop - 1)))

    def read_text(self, text: str) -> int | str:
        """Parse the id in a header. Raise SessionNotFound if new_id cannot have created it, and
        InvalidRequest if Triton does not accept it."""
        if self.has_names:
            check_id(text)
            if not self._fills(text):
                raise SessionNotFound(text)
            return text
        number = whole_number(text)
        if not number or number not in self.numbers:
            raise SessionNotFound(text)
        return number

    def _fills(self, sequence_id: str) -> bool:
        """Return whether an id fills the buffer in which Triton keeps it. After a shorter id, the
        model would read leftover memory (quirks.py)."""
        return not self.id_types or len(sequence_id.encode()) == LONGEST_NAME

    def read(self, name: str, value: object) -> bool | int | str:
        """Return the value of one of SEQUENCE_PARAMETERS in the type that Triton expects. Raise
        InvalidRequest."""
        if name != SEQUENCE_ID:
            return read_flag(name, value)
        if type(value) is int and value in self.numbers:
            return value
        if type(value) is str and self.has_names:
            check_id(value)
            if self._fills(value):
                return value
        kinds = []
        if self.numbers:
            kinds.append(f"a whole number from {self.numbers.start} to {self.numbers.stop - 1}")
        if self.has_names:
            kinds.append(f"a string of {LONGEST_NAME} bytes" if self.id_types else "a string")
        expected = " or ".join(kinds) or "of one type: parts of the ensemble disagree about it"
        raise InvalidRequest(
            f"parameter '{name}' must be {expected}, as the model's sequences have it (CORRID in "
            f"config.pbtxt); got {quoted(value)}"
        )


def read_flag(name: str, value: object) -> bool:
    """Parse a flag of a sequence: a bool, 1, 0 or one of WORDS. Raise InvalidRequest."""
    word = str(value).lower() if isinstance(value, bool | int | str) else ""
    if word not in WORDS:
        raise InvalidRequest(f"'{name}' must be true or false; got {quoted(value)}")
    return WORDS[word]


def check_id(sequence_id: str) -> None:
    """Raise InvalidRequest if the id is too long for Triton, or contains a NUL character, at which
    Triton would cut it."""
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
    """One request's part in a session: it `starts` the session, `ends` it, does both or neither."""

    sequencing: Sequencing
    id: str
    starts: bool = True
    ends: bool = True

    @classmethod
    def of(
        cls, sequencing: Sequencing, header: str, maps: Iterable[Mapping[str, object]]
    ) -> "Session | None":
        """Return the session that the header names, or None without a header. `maps` are the
        objects that may contain the key `sequence_end`. Raise SessionNotFound or InvalidRequest."""
        ends = [
            read_flag(SEQUENCE_END, fields[SEQUENCE_END])
            for fields in maps
            if SEQUENCE_END in fields
        ]
        # callers may send the reply's header back unchanged, including Expires
        name = header.partition(";")[0].strip()
        if not name:
            return None
        starts = name == NEW_SESSION
        if starts:
            name = sequencing.new_id()
        sequencing.read_text(name)  # raises an error if the id is invalid
        return cls(sequencing, name, starts, any(ends))

    def parameters(
        self, first: bool = True, last: bool = True
    ) -> dict[str, bool | int | float | str]:
        """Return the sequence parameters for Triton. `first` and `last` say whether this is the
        request's first or last step."""
        return {
            SEQUENCE_ID: self.sequencing.read_text(self.id),
            SEQUENCE_START: self.starts and first,
            SEQUENCE_END: self.ends and last,
        }

    def headers(self) -> dict[str, str]:
        """Return the headers of the reply. Expires is rounded down to whole seconds, so it is never
        too late."""
        expires = datetime.now(UTC) + timedelta(seconds=self.sequencing.idle_seconds)
        headers = {}
        if self.starts:
            headers[SESSION_ID] = f"{self.id}; Expires={expires:%Y-%m-%dT%H:%M:%SZ}"
        if self.ends:
            headers[CLOSED_SESSION_ID] = self.id
        return headers
