"""Batch transform: a body of JSON lines, or of rows of CSV -> as many lines of JSON, in the same order.

    line --read--> record --a group of records as one request--> predictions --> lines

A line that is wrong gives {"error", "code"} in its place and spoils no other. What is nobody's mistake (an
error of 503 and above) is raised, so that the platform sends all lines again: so no line of a reply leaves
before the last one is known.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import islice
from typing import Any

import orjson

from serving.bodies.flat import FlatBody
from serving.bodies.instances import Instances, as_items, joined
from serving.bodies.kserve import require_json
from serving.bodies.lines import JSON_LINES, CsvBody, JsonLines
from serving.bodies.reading import read_document
from serving.budget import read_json
from serving.decoding import Item
from serving.errors import DecodingError, InvalidRequest, ServingError, TooLate, TritonTimeout
from serving.inference.service import Inference
from serving.request import PATH, Body, Reply, Request, ServedModel, Target

log = logging.getLogger(__name__)
WHOLE_REQUEST = {"instances", "inputs", "payload"}  # one of these keys makes a line a request of its own
BATCHES = 4  # of a model in one group: one is prepared while Triton works on another


@dataclass(frozen=True)
class Record:
    """One line: a request, or why it is none. A `bare` one is an instance, answered by its prediction alone."""

    body: Body | ServingError
    bare: bool = False

    @property
    def instances(self) -> int:
        return len(self.body.items) if isinstance(self.body, Instances) else 1

    def goes_with(self, other: "Record") -> bool:
        """Whether one request can hold the instances of both."""
        return (
            isinstance(self.body, Instances)
            and isinstance(other.body, Instances)
            and self.body.parameters == other.body.parameters
        )


def transform(inference: Inference, served: ServedModel, request: Request) -> Reply:
    """The reply's lines. Raises InvalidRequest when there is no line or a parameter is wrong, TritonTimeout when the
    request's time is over, and what is nobody's mistake."""
    if served.sequencing and request.session:
        raise InvalidRequest("lines cannot be part of a session: send its requests one by one, as JSON")
    if served.client:
        served.client.read_parameters(Instances([]).given(served, request))
    job = _Job(inference, served, request)
    try:
        for records in groups(job.records(), job.group_size()):
            request.deadline.left()
            job.write(job.answer(records))
    except (TritonTimeout, TooLate) as err:
        raise TritonTimeout(
            f"{job.count} lines were answered in time, and there are more: send fewer at a time "
            "(SAGEMAKER_MAX_PAYLOAD_IN_MB), or raise SERVE_REQUEST_TIMEOUT"
        ) from err
    if not job.count:
        raise InvalidRequest("the body has no line; send one JSON value, or one row of CSV, per line")
    return Reply(bytes(job.written), JSON_LINES, job.version)


class _Job:
    """The lines of one body; `version` is one that answered."""

    def __init__(self, inference: Inference, served: ServedModel, request: Request) -> None:
        self.inference, self.served, self.request = inference, served, request
        self.version = request.version
        self.written, self.count = bytearray(), 0  # not a list: orjson keeps 4 kB for each small result that is held

    def group_size(self) -> int:
        """A sequence is of one line, for the lines have nothing to do with each other."""
        return 1 if self.served.sequencing else BATCHES * max(1, self.served.model.max_batch_size)

    def records(self) -> Iterator[Record]:
        """Raises InvalidRequest where the body as a whole is wrong, TooLate."""
        body, deadline = self.request.body, self.request.deadline
        if isinstance(body, CsvBody):
            items = body.items(self.served.require_client(), deadline)
            return (Record(Instances([item]), bare=True) for item in items)
        if isinstance(body, JsonLines):
            return (self.read(line, body.generates) for line in body.lines(deadline))
        raise TypeError(body)

    def read(self, line: bytes, generates: bool) -> Record:
        """What a line asks for; never raises a ServingError."""
        try:
            value = read_json(line)
            if isinstance(value, dict) and WHOLE_REQUEST & value.keys():
                self._check_target(value)
                return Record(read_document(value, len(line), generates).meant_for(self.served))
        except orjson.JSONDecodeError as err:
            return Record(DecodingError(f"the line is not JSON: {err}"))
        except ServingError as err:
            return Record(err)
        if generates and isinstance(value, dict) and not self.served.client:
            return Record(FlatBody(value, generates=True))
        return Record(Instances([Item("record", value=value)]), bare=True)

    def _check_target(self, document: dict[str, Any]) -> None:
        target, named = self.request.target, Target.within("the line", document)
        name = None if target.place == PATH else self.served.name
        for ours, theirs in ((name, named.name), (target.version, named.version)):
            if None not in (ours, theirs) and theirs != ours:
                raise InvalidRequest(
                    f"the line names '{theirs}', and all lines of a body go to one model and version: name another "
                    "one in a header or the query string of another request"
                )

    def write(self, lines: list[bytes]) -> None:
        """Raises PayloadTooLarge."""
        self.written += b"".join(lines)
        self.count += len(lines)
        self.request.budget.check_output(len(self.written))

    def answer(self, records: list[Record]) -> list[bytes]:
        """A line for each of a group's records."""
        first = records[0].body
        if isinstance(first, ServingError):
            return [_error_line(first)]
        if isinstance(first, Instances):
            return self._predict(records)
        try:
            reply = require_json(self.inference.once(self.served, self._about(first)))
        except ServingError as err:
            return [_error_line(_own_mistake(err))]
        return [reply.content + b"\n"]

    def _predict(self, records: list[Record]) -> list[bytes]:
        """A group that fails is halved until the records that are wrong stand alone."""
        self.request.deadline.left()
        bodies = [record.body for record in records if isinstance(record.body, Instances)]
        try:
            results = list(self.inference.results(self.served, self._about(joined(bodies))))
        except ServingError as err:
            _own_mistake(err)
            if len(records) == 1:
                return [_error_line(err)]
            half = len(records) // 2
            return self._predict(records[:half]) + self._predict(records[half:])
        self.version = results[-1].version
        predictions = (prediction for result in results for prediction in result.predictions)
        return [
            self._line(record.bare, body, list(islice(predictions, len(body.items))))
            for record, body in zip(records, bodies, strict=True)
        ]

    def _line(self, bare: bool, body: Instances, predictions: list[Any]) -> bytes:
        items = as_items(predictions)
        return (items if bare else body.document(self.served, items, self.version)) + b"\n"

    def _about(self, body: Body) -> Request:
        return replace(self.request, body=body)


def groups(records: Iterator[Record], most: int) -> Iterator[list[Record]]:
    """Records that follow each other and can be one request, up to the one that makes it `most` instances; every other
    one by itself."""
    group: list[Record] = []
    instances = 0
    for record in records:
        if group and (instances >= most or not record.goes_with(group[-1])):
            yield group
            group, instances = [], 0
        group.append(record)
        instances += record.instances
    if group:
        yield group


def _own_mistake(error: ServingError) -> ServingError:
    """The error of a line; one that is nobody's mistake is raised."""
    if error.status >= HTTPStatus.SERVICE_UNAVAILABLE:
        raise error
    return error


def _error_line(error: ServingError) -> bytes:
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("a line of a batch: %s", error, exc_info=error)
    if isinstance(error, DecodingError):  # its number is the one within a group, which says nothing to the caller
        error = DecodingError(error.reason, field=error.field)
    return orjson.dumps(error.facts(), option=orjson.OPT_APPEND_NEWLINE)
