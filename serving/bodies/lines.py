"""Answers JSON lines, or rows of CSV or LibSVM, with one line of JSON each, in the same order, as
SageMaker's batch transform expects.

Each line or row becomes a Record. Consecutive records that can share a job are grouped, and
answered together.

A wrong line is answered with {"error", "code"} instead of a prediction; the other lines are
answered normally. An error with a status of 503 or above makes the whole body fail, so that the
platform sends it again. For this reason, the reply is sent only when all of its lines are known.
"""

import io
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from itertools import chain, islice
from typing import Any

import orjson

from serving.bodies import schemas
from serving.bodies.decoder import Item
from serving.bodies.documents import WHOLE_BODY_KEYS, FlatBody, Shape, read_shape
from serving.bodies.instances import (
    Instances,
    InstancesJob,
    client_parameters,
    json_items,
    predictions_document,
)
from serving.bodies.schemas import BOM, read
from serving.budget import TURN, check_time, in_time, read_json
from serving.errors import (
    DecodingError,
    InvalidRequest,
    NotAcceptable,
    ServingError,
    TooLate,
    TritonTimeout,
)
from serving.headers import JSON_LINES, JSON_TYPE
from serving.job import Job, Reply, Run
from serving.model_status.served_model import ServedModel
from serving.request import PATH, UNNAMED, Request, Target
from serving.request_memory import Reservation, collected, reserve
from serving.triton.gateway import TritonGateway

log = logging.getLogger(__name__)
LINES_TYPES = (JSON_LINES, "application/x-jsonlines", "application/x-ndjson")
# How many batches fill a group. With several, one can be prepared while Triton works on another.
BATCHES = 4
# A group is also full when the values of its lines take this many bytes of memory. Smaller groups
# leave memory for other callers.
MOST_GROUP = 2**24


@dataclass(frozen=True)
class Record:
    """A parsed line or row. `body` is the body that the line represents, or the error if the line
    is wrong. `reserved` is the memory that the line's values take. If `is_bare` is true, the line
    is answered with its prediction alone."""

    body: Shape | ServingError
    is_bare: bool = False
    reserved: Reservation = field(default_factory=Reservation)

    @property
    def count(self) -> int:
        """Return the number of instances, or 1 if the line does not contain instances."""
        return len(self.body.items) if isinstance(self.body, Instances) else 1

    def can_join(self, other: "Record") -> bool:
        """Return whether one job can process the instances of both records."""
        if not (isinstance(self.body, Instances) and isinstance(other.body, Instances)):
            return False
        # compare them as text, because 1 == True, and a client may accept only one of the two
        return repr(self.body.parameters) == repr(other.body.parameters)


@dataclass(frozen=True)
class JsonLines:
    """A body of JSON lines. `generates` has the same meaning as in FlatBody."""

    data: bytes
    generates: bool = False

    @property
    def named(self) -> Target:
        """Return the model and version that the first line names. Each is used only if no other
        part of the request names one."""
        line = next(self._lines(), b"")
        with suppress(ServingError):
            return read(schemas.Named, line).target("the first line")
        return UNNAMED

    def _lines(self) -> Iterator[bytes]:
        lines = in_time(io.BytesIO(self.data.removeprefix(BOM)))
        return (line for line in lines if not line.isspace())

    def bind(self, served: ServedModel, request: Request) -> Job:
        records = (self._read(line, served, request.target) for line in self._lines())
        return LinesJob(served, request, records)

    def _read(self, line: bytes, served: ServedModel, target: Target) -> Record:
        """Parse a line, holding TURN, so that this worker parses only one line at a time. If the
        line is invalid, return a Record that contains the error. Raise an error that must make the
        whole body fail."""
        with collected() as reserved, TURN:
            record = self._record(line, served, target)
        return replace(record, reserved=reserved)

    def _record(self, line: bytes, served: ServedModel, target: Target) -> Record:
        try:
            value = read_json(line)
            body = self._body(value, len(line), served)
            _check_target(body.named, served, target)
        except ValueError as err:
            return Record(DecodingError(f"the line is not JSON: {err}"))
        except ServingError as err:
            _check_line_error(err)
            return Record(err)
        is_whole_body = isinstance(value, dict) and not WHOLE_BODY_KEYS.isdisjoint(value)
        return Record(body, is_bare=not is_whole_body)

    def _body(self, value: Any, length: int, served: ServedModel) -> Shape:
        """Return the body that the value of a line of `length` bytes represents. If the value does
        not have the shape of a body, it is an instance. Raise a ServingError."""
        if isinstance(value, dict):
            body = read_shape(value, length, self.generates)
            if not isinstance(body, FlatBody):
                return body
            if instances := body.instances_for(served):
                return instances
            is_whole_body = not WHOLE_BODY_KEYS.isdisjoint(value)
            if is_whole_body or (self.generates and not served.client):
                return body
        return Instances([Item("record", value=value)])


def _check_target(named: Target, served: ServedModel, target: Target) -> None:
    """Raise InvalidRequest if a line names another model or version than its request. If the path
    names the model, ignore the model that the line names."""
    names_other_model = named.name not in (None, served.name, target.name)
    names_other_version = named.version not in (None, target.version)
    other = None
    if names_other_model and target.source != PATH:
        other = named.name
    elif names_other_version:
        other = named.version
    if other is not None:
        raise InvalidRequest(
            f"the line names '{other}', and all lines of a body go to one model and "
            "version: name another one in a header or the query string of another request"
        )


class LinesJob(Job):
    """Answers a body of lines, one group after another. Lines are never streamed, and the header
    Accept is ignored. `version` is the model version that answered the last group or, before the
    first answer, the version that the request names."""

    def __init__(self, served: ServedModel, request: Request, records: Iterator[Record]) -> None:
        """Raise InvalidRequest if a parameter is wrong, or if the lines belong to a session."""
        if served.sequencing and request.session:
            raise InvalidRequest(
                "lines cannot be part of a session: send its requests one by one, as JSON"
            )
        if served.client:
            client_parameters(served.client, request, {})  # only to check the parameters
        super().__init__(served, replace(request, stream="", accept=""))
        self._records = records
        self.version = request.target.version or ""

    def answer(self, gateway: TritonGateway) -> Reply:
        """Return the reply with all lines. Raise InvalidRequest if there is no line,
        PayloadTooLarge if the reply would be too large, TritonTimeout if the request has no time
        left, BackendDied, any ServingError with a status of 503 or above, and what the iterator of
        the records raises."""
        # write into a buffer instead of a list, because orjson allocates 4 kB for each small result
        written = io.BytesIO()
        answer = reserve(0, "the answer")
        count = 0
        batch = max(1, self.served.model.max_batch_size)
        # lines are independent of each other, so each must be a separate sequence
        most = 1 if self.served.sequencing else BATCHES * batch
        try:
            for records in groups(self._records, most):
                with collected() as reserved:
                    lines = self._answer_group(gateway, records)
                reserved.shrink()
                for record in records:
                    record.reserved.shrink()
                self.request.budget.grow(answer, written.tell() + sum(map(len, lines)))
                written.writelines(lines)
                count += len(lines)
        except (TritonTimeout, TooLate) as err:
            raise TritonTimeout(
                f"{count} lines were answered in time, and there are more: send fewer at a time "
                "(SAGEMAKER_MAX_PAYLOAD_IN_MB), or raise SERVE_REQUEST_TIMEOUT"
            ) from err
        if not count:
            raise InvalidRequest(
                "the body has no line; send one JSON value, or one row of CSV, per line"
            )
        return Reply(written.getvalue(), JSON_LINES, self.version)

    def _answer_group(self, gateway: TritonGateway, records: list[Record]) -> list[bytes]:
        """Return one line for each record of a group. If the group fails, answer each half of it
        separately, until each wrong record is alone. Raise an error that must make the whole body
        fail."""
        check_time()
        try:
            # after an error, the halves need the memory of this attempt
            with collected():
                return self._answer_as_one_job(gateway, records)
        except ServingError as err:
            _check_line_error(err)
            if len(records) == 1:
                return [_error_line(err)]
        half = len(records) // 2
        lines = self._answer_group(gateway, records[:half])
        return lines + self._answer_group(gateway, records[half:])

    def _answer_as_one_job(self, gateway: TritonGateway, records: list[Record]) -> list[bytes]:
        """Answer the records of a group as one job, and return their lines. A record without
        instances is always a group of its own (`groups`). Raise a ServingError."""
        body = records[0].body
        if isinstance(body, ServingError):
            # Do not raise the error. Its traceback would refer to this frame, which refers to the
            # error: a reference cycle.
            return [_error_line(body)]
        if isinstance(body, Instances):
            return self._predict(gateway, records)
        reply = body.bind(self.served, self.request).answer(gateway)
        if reply.content_type != JSON_TYPE:
            raise NotAcceptable(
                "a line cannot hold binary outputs: ask for outputs without binary_data"
            )
        self.version = reply.version
        return [reply.content + b"\n"]

    def _predict(self, gateway: TritonGateway, records: list[Record]) -> list[bytes]:
        """Answer records that contain instances as one job, and return their lines. `can_join` has
        ensured that all records contain instances, and that their parameters are equal."""
        bodies = [record.body for record in records if isinstance(record.body, Instances)]
        items = list(chain.from_iterable(body.items for body in bodies))
        job = InstancesJob(self.served, self.request, Instances(items, bodies[0].parameters))
        results = list(Run(job, gateway).results())
        self.version = results[-1].version
        predictions = chain.from_iterable(result.predictions for result in results)
        lines = []
        for record, body in zip(records, bodies, strict=True):
            line = json_items(list(islice(predictions, len(body.items))))
            if not record.is_bare:
                line = predictions_document(self.served, line, self.version, body.as_result)
            lines.append(line + b"\n")
        return lines


def groups(records: Iterator[Record], most: int) -> Iterator[list[Record]]:
    """Group consecutive records that can share a job, until a group has at least `most` instances
    or takes MOST_GROUP bytes. A record that cannot be joined is a group of its own."""
    group: list[Record] = []
    count = size = 0
    for record in records:
        is_full = count >= most or size >= MOST_GROUP
        if group and (is_full or not record.can_join(group[-1])):
            yield group
            group = []
            count = size = 0
        group.append(record)
        count += record.count
        size += record.reserved.size
    if group:
        yield group


def _check_line_error(error: ServingError) -> None:
    """Raise `error` if it must make the whole body fail. Do nothing if it may be the answer to its
    line."""
    if error.status >= HTTPStatus.SERVICE_UNAVAILABLE:
        raise error


def _error_line(error: ServingError) -> bytes:
    """Return the line that reports the error. Log the error if the caller did not cause it."""
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("a line of a batch: %s", error, exc_info=error)
    # remove the instance's number: it is counted within a group, so the caller cannot interpret it
    if isinstance(error, DecodingError):
        error = DecodingError(error.reason, field=error.field)
    return orjson.dumps(error.fields(), option=orjson.OPT_APPEND_NEWLINE)
