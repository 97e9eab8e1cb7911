"""Batch transform: a body of JSON lines -> as many lines, in the same order.

    line --read_record--> record --a group of records, one request to the Pipeline--> predictions --> lines

A line that is wrong gives {"error", "code"} in its place and spoils no other. What is nobody's mistake (an
error of 503 and above) is raised, so that the platform sends all lines again: so no line of a reply leaves
before the last one is known. Empty lines are skipped.
"""

import io
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice
from typing import Any

import orjson

from serving.bodies.invocation import Body, FlatBody, Instances, Item, NpyBody, TensorBody, read_document, target_in
from serving.bodies.tensors import from_triton, to_triton
from serving.errors import DecodingError, InvalidRequest, NotAcceptable, ServingError, TooLate, TritonTimeout
from serving.inference.pipeline import Pipeline, Predictions
from serving.inference.served_model import ServedModel
from serving.inference.streaming import Query, lines, only_line

log = logging.getLogger(__name__)
WHOLE_REQUEST = {"instances", "inputs", "payload"}  # one of these keys makes a line a request of its own
BATCHES = 4  # of a model in one group: the Pipeline prepares one while Triton works on another


@dataclass(frozen=True)
class Record:
    """One line: a request, or why it is none. A `bare` one is an instance, answered by its prediction alone."""

    body: Body | ServingError
    bare: bool = False

    def goes_with(self, other: "Record") -> bool:
        """Whether one request to the Pipeline can hold the instances of both."""
        return (
            isinstance(self.body, Instances)
            and isinstance(other.body, Instances)
            and self.body.parameters == other.body.parameters
        )


@dataclass(frozen=True)
class Job:
    """What the lines of one body have in common.

    A line may name the model too, by `name` (None: by any, for the route has named it), and `version`. `given` are
    the parameters of the request, `reply` makes the document that answers a record in the shape of a request,
    `flat` says whether a record may be a flat object (Triton's generate). `versions` are those that answered.
    """

    pipeline: Pipeline
    served: ServedModel
    name: str | None
    version: str
    given: Mapping[str, Any]
    reply: Callable[[ServedModel, Predictions, Instances], dict[str, Any]]
    flat: bool = False
    request_id: str = ""
    versions: set[str] = field(default_factory=set)

    def run(self, body: bytes) -> bytes:
        """The reply's lines. Raises InvalidRequest when there is no line or a parameter is wrong, TritonTimeout
        when the request's time is over, and what is nobody's mistake."""
        if self.served.client:
            self.served.read_parameters(self.given)
        written: list[bytes] = []
        for records in groups(map(self.read_record, records_in(body)), self._group_size()):
            try:
                written += self.answer(records)
            except (TritonTimeout, TooLate) as err:
                raise TritonTimeout(
                    f"{len(written)} lines were answered in time, and there are more: send fewer at a time "
                    "(SAGEMAKER_MAX_PAYLOAD_IN_MB), or raise SERVE_REQUEST_TIMEOUT"
                ) from err
        if not written:
            raise InvalidRequest("the body has no line; send one JSON value per line")
        return b"\n".join([*written, b""])

    def _group_size(self) -> int:
        """A sequence is of one line, for the lines have nothing to do with each other."""
        return 1 if self.served.sequencing else BATCHES * max(1, self.served.model.max_batch_size)

    def read_record(self, line: bytes) -> Record:
        """What a line asks for; never raises a ServingError."""
        try:
            value = orjson.loads(line)
            if isinstance(value, dict) and WHOLE_REQUEST & value.keys():
                self._check_target(value)
                return Record(read_document(value, line))
        except orjson.JSONDecodeError as err:
            return Record(DecodingError(f"the line is not JSON: {err}"))
        except ServingError as err:
            return Record(err)
        if self.flat and isinstance(value, dict) and not self.served.client:
            return Record(FlatBody(value))
        return Record(Instances([Item("record", value=value)]), bare=True)

    def _check_target(self, document: Mapping[str, Any]) -> None:
        named = target_in("the line", document)
        for ours, theirs in ((self.name, named.name), (self.version, named.version)):
            if None not in (ours, theirs) and theirs != ours:
                raise InvalidRequest(
                    f"the line names '{theirs}', and all lines of a body go to one model and version: name another "
                    "one in a header or the query string of another request"
                )

    def answer(self, records: list[Record]) -> list[bytes]:
        """A line for each of a group's records."""
        first = records[0].body
        if isinstance(first, ServingError):
            return [_write_error(first)]
        if isinstance(first, Instances):
            return self._predict(records)
        try:
            return [self._infer(first) if isinstance(first, TensorBody) else self._generate(first)]
        except ServingError as err:
            return [_write_error(_own_mistake(err))]

    def _predict(self, records: list[Record]) -> list[bytes]:
        """A group that fails is halved until the records that are wrong stand alone."""
        bodies = [record.body for record in records if isinstance(record.body, Instances)]
        items = [item for body in bodies for item in body.items]
        given = {**self.given, **bodies[0].parameters}
        try:
            done = self.pipeline.predict(self.served, self.version, items, given, self.request_id)
        except ServingError as err:
            _own_mistake(err)
            if len(records) == 1:
                return [_write_error(err)]
            half = len(records) // 2
            return self._predict(records[:half]) + self._predict(records[half:])
        self.versions.add(done.version)
        predictions = iter(done.predictions)
        return [
            self._write(record.bare, body, Predictions(done.version, list(islice(predictions, len(body.items))), []))
            for record, body in zip(records, bodies, strict=True)
        ]

    def _write(self, bare: bool, body: Instances, done: Predictions) -> bytes:
        return orjson.dumps(done.predictions[0] if bare else self.reply(self.served, done, body))

    def _infer(self, body: TensorBody) -> bytes:
        outgoing = to_triton(body, self.served.model)
        name = self.served.model.name
        reply = self.pipeline.gateway.forward(name, self.version, outgoing.body, outgoing.headers())
        reply = from_triton(reply, outgoing.halves)
        if reply.header_length is not None:
            raise NotAcceptable("binary outputs cannot stand in a line: ask for outputs without binary_data")
        return reply.body

    def _generate(self, body: FlatBody | TensorBody | NpyBody) -> bytes:
        query = Query(self.served, self.version, body, {}, None, self.request_id)
        line = only_line(lines(self.pipeline, query, lambda responses: None))
        if line is None:
            raise NotAcceptable(f"model '{self.served.model.name}' gave none or several responses, a line holds one")
        return line.json


def records_in(body: bytes) -> Iterator[bytes]:
    """The lines, one after the other: a large body is not held a second time."""
    return (line for line in io.BytesIO(body) if not line.isspace())


def groups(records: Iterator[Record], most: int) -> Iterator[list[Record]]:
    """Records that follow each other and can be one request, `most` at a time; every other one by itself."""
    group: list[Record] = []
    for record in records:
        if group and (len(group) >= most or not record.goes_with(group[-1])):
            yield group
            group = []
        group.append(record)
    if group:
        yield group


def _own_mistake(error: ServingError) -> ServingError:
    """The error of a line; one that is nobody's mistake is raised."""
    if error.status >= HTTPStatus.SERVICE_UNAVAILABLE:
        raise error
    return error


def _write_error(error: ServingError) -> bytes:
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("a line of a batch: %s", error, exc_info=error)
    if isinstance(error, DecodingError):  # its number is the one within a group, which says nothing to the caller
        error = DecodingError(error.reason, field=error.field)
    return orjson.dumps({"error": str(error), "code": error.code})
