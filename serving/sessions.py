"""Maps SageMaker's sticky sessions to Triton's sequences.

    X-Amzn-SageMaker-Session-Id: NEW_SESSION  -> a new id; Triton gets sequence_start
    X-Amzn-SageMaker-Session-Id: ID           -> the next step; Triton refuses an unknown sequence
    the same and sequence_end=true            -> Triton gets sequence_end

The workers keep no state: Triton knows its sequences, so any worker can answer any request.
"""

import secrets
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property

from serving.errors import InvalidRequest, SessionNotFound
from serving.headers import CLOSED_SESSION_ID, NEW_SESSION, SESSION_ID
from serving.named_value import INT64, quoted, whole_number

SEQUENCE_ID = "sequence_id"
SEQUENCE_START = "sequence_start"
SEQUENCE_END = "sequence_end"
SEQUENCE_PARAMETERS = {SEQUENCE_ID, SEQUENCE_START, SEQUENCE_END}
LONGEST_ID = 128  # bytes of an id that is a string (Triton's correlation_id.h)
FLAGS = {"true": True, "1": True, "false": False, "0": False}
# The numbers that are valid ids, keyed by the datatype of CORRID in config.pbtxt. UINT64 stops at
# 2**63, because Triton does not accept an id as an unsigned gRPC parameter.
NUMBERS = {
    "UINT64": range(2**63),
    "INT64": INT64,
    "UINT32": range(2**32),
    "INT32": range(-(2**31), 2**31),
    "BYTES": range(0),
}


@dataclass(frozen=True)
class Sequencing:
    """Describes how a model handles sequences. Triton ends a sequence after `idle_seconds` without
    a request.

    `id_types` are the datatypes in which the model, or the parts of an ensemble, receive a
    sequence's id. If no part receives the id, it may be any number or string. An id that does not
    fit all of the datatypes is never sent to Triton (quirks.py).
    """

    id_types: frozenset[str]
    idle_seconds: float

    @cached_property
    def numbers(self) -> range:
        """Return the numbers that are valid ids. The range is empty if ids must be strings, or if
        parts of an ensemble have no number in common."""
        ranges = [INT64, *(NUMBERS[id_type] for id_type in self.id_types)]
        first = max(numbers.start for numbers in ranges)
        end = min(numbers.stop for numbers in ranges)
        return range(first, end)

    @property
    def accepts_strings(self) -> bool:
        """Return whether ids may be strings."""
        return self.id_types <= {"BYTES"}

    def new_id(self) -> str:
        """Return a new random id, which is hard to guess unless its datatype has only 32 bits. The
        id is never 0, because 0 means "no sequence" to Triton."""
        if self.id_types == {"BYTES"}:
            return secrets.token_hex(LONGEST_ID // 2)
        if self.accepts_strings:
            return uuid.uuid4().hex
        # if no number is valid, return one that parse_id refuses
        largest = max(1, self.numbers.stop - 1)
        return str(1 + secrets.randbelow(largest))

    def parse_id(self, text: str) -> int | str:
        """Parse an id that a caller sent in a header. Raise InvalidRequest if Triton accepts no
        such string, and SessionNotFound if the id does not fit the datatypes or is 0."""
        if self.accepts_strings:
            _check_id(text)
            if not self._fills_buffer(text):
                raise SessionNotFound(text)
            return text
        number = whole_number(text)
        if not number or number not in self.numbers:
            raise SessionNotFound(text)
        return number

    def _fills_buffer(self, sequence_id: str) -> bool:
        """Return whether an id fills the fixed-size buffer in which Triton passes it to the model,
        or no model receives the id. After a shorter id, the model would read leftover memory
        (quirks.py)."""
        return not self.id_types or len(sequence_id.encode()) == LONGEST_ID

    def parse_parameter(self, name: str, value: object) -> bool | int | str:
        """Convert the value of the parameter `name`, one of SEQUENCE_PARAMETERS, to the type that
        Triton expects. Raise InvalidRequest if that is impossible."""
        if name != SEQUENCE_ID:
            return read_flag(name, value)
        if type(value) is int and value in self.numbers:
            return value
        if type(value) is str and self.accepts_strings:
            _check_id(value)
            if self._fills_buffer(value):
                return value
        kinds = []
        if self.numbers:
            kinds.append(f"a whole number from {self.numbers.start} to {self.numbers.stop - 1}")
        if self.accepts_strings:
            kinds.append(f"a string of {LONGEST_ID} bytes" if self.id_types else "a string")
        expected = " or ".join(kinds) or "of one type: parts of the ensemble disagree about it"
        raise InvalidRequest(
            f"parameter '{name}' must be {expected}, as the model's sequences have it (CORRID in "
            f"config.pbtxt); got {quoted(value)}"
        )


def read_flag(name: str, value: object) -> bool:
    """Parse a flag of a sequence: a bool, 1, 0 or one of FLAGS. Raise InvalidRequest for any other
    value."""
    word = str(value).lower() if isinstance(value, bool | int | str) else ""
    if word not in FLAGS:
        raise InvalidRequest(f"'{name}' must be true or false; got {quoted(value)}")
    return FLAGS[word]


def _check_id(sequence_id: str) -> None:
    """Raise InvalidRequest if the id is too long for Triton, or if it contains a NUL character,
    because Triton would cut the id there."""
    length = len(sequence_id.encode())
    if length > LONGEST_ID:
        raise InvalidRequest(
            f"the session's id has {length} bytes, at most {LONGEST_ID} are allowed"
        )
    if "\0" in sequence_id:
        raise InvalidRequest(
            f"the session's id {quoted(sequence_id)} has a NUL character, where Triton would cut "
            "it; leave the character out"
        )


@dataclass(frozen=True)
class Session:
    """Says which session a request belongs to, and whether the request `starts` or `ends` it."""

    sequencing: Sequencing
    id: str
    starts: bool = True
    ends: bool = True
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))  # before its steps are sent

    @classmethod
    def of(
        cls, sequencing: Sequencing, header: str, maps: Iterable[Mapping[str, object]]
    ) -> "Session | None":
        """Return the session whose id is in `header`, a new one for NEW_SESSION, or None if it is
        empty. `maps` are the objects that may contain the key `sequence_end`. Raise SessionNotFound
        or InvalidRequest if the id or a flag is invalid."""
        # without a session, a wrong flag is an error too
        ends = [
            read_flag(SEQUENCE_END, fields[SEQUENCE_END])
            for fields in maps
            if SEQUENCE_END in fields
        ]
        # a caller may return the header of our reply unchanged, including Expires
        session_id = header.partition(";")[0].strip()
        if not session_id:
            return None
        starts = session_id == NEW_SESSION
        if starts:
            session_id = sequencing.new_id()
        sequencing.parse_id(session_id)  # raises an error if the id is invalid
        return cls(sequencing, session_id, starts, any(ends))

    def parameters(
        self, first: bool = True, last: bool = True
    ) -> dict[str, bool | int | float | str]:
        """Return the sequence parameters for one step of the request. `first` and `last` say
        whether it is the request's first and last step."""
        return {
            SEQUENCE_ID: self.sequencing.parse_id(self.id),
            SEQUENCE_START: self.starts and first,
            SEQUENCE_END: self.ends and last,
        }

    def headers(self) -> dict[str, str]:
        """Return the headers for the reply: the session's id and expiry if it starts, its id if it
        ends. The session exists at least until Expires, because Triton counts the time from the
        arrival of the last step, which is later than `begun`, and because Expires is rounded down
        to whole seconds."""
        expires = self.begun + timedelta(seconds=self.sequencing.idle_seconds)
        headers = {}
        if self.starts:
            headers[SESSION_ID] = f"{self.id}; Expires={expires:%Y-%m-%dT%H:%M:%SZ}"
        if self.ends:
            headers[CLOSED_SESSION_ID] = self.id
        return headers
