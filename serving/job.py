"""Defines Job, which each kind of body creates from a request, and Run, which executes a job.

A job is executed step by step. Job.prepare returns a Step, which Run sends to Triton. When Triton
has replied, Job.finish converts the replies to the result of the step. Finally, Job.reply combines
the results of all steps into one reply. For a stream, Job.line converts each result to a line.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from clients.base import TensorSpec
from serving.budget import check_time
from serving.errors import (
    InvalidRequest,
    Overloaded,
    PayloadTooLarge,
    SessionNotFound,
    TritonUnavailable,
)
from serving.model_status.served_model import ServedModel
from serving.named_value import unknown
from serving.request import Request
from serving.request_memory import INPUT, OUTPUT, Reservation, reserve
from serving.sessions import Session
from serving.triton.connection import BackendDied
from serving.triton.gateway import Call, Responses, TritonGateway
from serving.triton.quirks import NO_ROWS, UNKNOWN_SEQUENCE
from serving.triton.tensors import InferReply, InferRequest, Parameters, Tensor


@dataclass(frozen=True)
class Step:
    """One call to Triton within a job. If the step `is_partial`, Run keeps its reply. The next step
    that is not partial is finished with all kept replies and its own. `batch` is the job's own data
    for the step, including the memory that is reserved for it. It is kept until the step is
    finished."""

    inputs: Sequence[Tensor]
    parameters: Parameters = field(default_factory=dict)
    outputs: Sequence[str] = ()
    batch: Any = None
    is_partial: bool = False
    is_last: bool = True


@dataclass(frozen=True)
class Reply:
    """A reply in one piece. `version` is the version of the model that answered; `headers` are
    further headers."""

    content: bytes
    content_type: str = "application/json"
    version: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class Job:
    """The work for one request to one model. Each kind of body has its own subclass. A job runs
    only once.

    `session` is the session that the request belongs to. `flags` are the objects in the body that
    may contain the key `sequence_end`. If the job `is_decoupled`, Triton may send any number of
    responses to a step, even if the reply is in one piece. If the job `is_pipelined`, a step can be
    prepared before the previous one is answered.
    """

    is_pipelined = False

    def __init__(self, served: ServedModel, request: Request, *flags: Mapping[str, Any]) -> None:
        self.served = served
        self.request = request
        self.is_decoupled = bool(request.stream)
        self.session: Session | None = None
        if served.sequencing:
            sources = (request.attributes, request.parameters, *flags)
            self.session = Session.of(served.sequencing, request.session, sources)

    def prepare(self, before: Step | None = None) -> Step:
        """Return the step that follows `before`, or the first step if `before` is None. Raise a
        ServingError if that fails. After Overloaded or PayloadTooLarge, this method may be called
        again with the same `before`."""
        raise NotImplementedError

    def finish(self, step: Step, replies: Sequence[InferReply]) -> Any:
        """Return the step's result, an object with a `version`. `replies` are the replies to the
        preceding partial steps, followed by the reply to this step. Raise a ServingError."""
        return replies[-1]

    def release(self, step: Step) -> None:
        """Free what the job holds for a step that has been answered."""

    def reply(self, results: Iterator[Any]) -> Reply:
        """Combine the results of all steps into a reply in one piece."""
        raise NotImplementedError

    def line(self, result: Any) -> bytes:
        """Return the result as JSON, for a line or an event of a stream."""
        raise NotImplementedError

    def answer(self, gateway: TritonGateway) -> Reply:
        """Run the job and return its reply in one piece. The run cannot be cancelled: if the caller
        disconnects, it continues until it is done or the deadline passes. Raise a ServingError or
        BackendDied."""
        with closing(Run(self, gateway).results()) as results:
            return self.reply(results)

    def infer_request(self, step: Step) -> InferRequest:
        """Return the request to send to Triton for a step.

        Raise InvalidRequest for an input that is sent twice, and for tensors that the model does
        not have. Triton does not reject them safely: it cuts names at a NUL character, and its
        error lists all of the names, which for 10,000 names is too long for gRPC. Also raise
        InvalidRequest for a step without rows, because Triton never answers one (quirks.py).
        """
        served = self.served
        inputs = [tensor.name for tensor in step.inputs]
        if len(set(inputs)) < len(inputs):
            raise InvalidRequest("the request names an input twice; send each input once")
        _check_names(served, "input", inputs, served.model.inputs)
        _check_names(served, "output", step.outputs, served.model.outputs)
        if served.model.max_batch_size or served.batched_parts:
            _check_rows(step.inputs)
        return InferRequest(
            model=served.name,
            version=self.request.target.version or "",
            inputs=tuple(step.inputs),
            id=self.request.id,
            parameters=step.parameters,
            outputs=step.outputs,
            traceparent=self.request.traceparent,
        )


def _check_names(
    served: ServedModel, kind: str, names: Sequence[str], specs: Sequence[TensorSpec]
) -> None:
    known = {spec.name for spec in specs}
    for name in names:
        if name not in known:
            raise InvalidRequest(f"model '{served.name}': {unknown(kind, name, known)}")


def _check_rows(inputs: Sequence[Tensor]) -> None:
    for tensor in inputs:
        if tensor.shape[:1] == NO_ROWS:
            raise InvalidRequest(
                f"input '{tensor.name}': its shape {list(tensor.shape)} has no rows; "
                "the first dimension counts them and must be at least 1"
            )


def _call_bytes(served: ServedModel, step: Step) -> int:
    """Estimate how many bytes of memory a call takes for its inputs and its outputs. The sizes of
    the outputs come from the model's configuration. If an output has N dynamic dimensions, they are
    assumed to be as long as the last N dimensions of the smallest input."""
    inputs = sum(len(tensor.data) for tensor in step.inputs)
    shapes = [tensor.shape for tensor in step.inputs]
    rows = 1
    if served.model.max_batch_size:
        # Triton rejects a call whose inputs have different numbers of rows
        rows = min((shape[0] for shape in shapes if shape), default=1)
        shapes = [shape[1:] for shape in shapes]
    smallest = min(shapes, key=prod, default=())
    return INPUT * inputs + OUTPUT * rows * served.output_bytes(step.outputs, smallest)


class Run:
    """Executes a job step by step: prepares each step, sends it to Triton, waits for the replies,
    and finishes it.

    While Triton works on a step of a pipelined job, the next step is prepared and sent.
    """

    def __init__(self, job: Job, gateway: TritonGateway) -> None:
        self.is_cancelled = False
        self._has_died = False
        self._is_given_up = False
        self._job = job
        self._gateway = gateway
        self._in_flight: list[Call | Responses] = []  # contains at most two calls
        self._reserved = Reservation()  # memory for the call, if the job has not reserved it itself

    def results(self) -> Generator[Any, None, None]:
        """Yield the result of each step that is not partial or, if the job is decoupled, of each
        response. Raise a ServingError or BackendDied."""
        job = self._job
        partial_replies: list[InferReply] = []  # to the partial steps before this one
        call: Call | Responses | None
        reply: InferReply | None
        try:
            step, call = self._begin(None)
            while True:
                begun_ahead = self._begin_ahead(step)
                for reply in self._replies(call):
                    if step.is_partial:
                        partial_replies.append(reply)
                    else:
                        yield job.finish(step, [*partial_replies, reply])
                if not step.is_partial:
                    job.release(step)
                    partial_replies.clear()
                if step.is_last:
                    return
                # free this step's memory, because the next step may need it
                step = replace(step, inputs=())
                call = None
                reply = None
                step, call = begun_ahead or self._begin(step)
        except InvalidRequest as err:
            if job.session and str(err).endswith(UNKNOWN_SEQUENCE):
                raise SessionNotFound(job.session.id) from err
            raise
        except TritonUnavailable as err:
            if self._has_died:
                raise BackendDied("a process of the model died before its last response") from err
            raise
        finally:
            # Close the calls that are still in flight after an error, or because the caller has
            # left. This waits until Triton has answered them, or has ended their streams.
            for call in self._in_flight:
                call.close()
            self._reserved.shrink()

    def cancel(self) -> None:
        """End the job because its caller has disconnected. Safe to call from any thread."""
        self.is_cancelled = True
        self._give_up()

    def end_as_died(self) -> None:
        """End the job with BackendDied, because a process of its model has died. Triton reports
        this only for calls that the process is executing, not for a stream that waits for its next
        response. Safe to call from any thread."""
        self._has_died = True
        self._give_up()

    def _give_up(self) -> None:
        """End the calls in flight early, because their replies are no longer needed."""
        self._is_given_up = True
        for call in tuple(self._in_flight):
            call.give_up()

    def _begin(self, before: Step | None) -> tuple[Step, Call | Responses]:
        """Prepare the step that follows `before`, and return it with its call. The call has been
        sent if it is a stream, or if the job may have several steps in flight. Any other call is
        sent by `_replies`."""
        job = self._job
        request = job.request
        check_time()
        if self._is_given_up:
            raise TritonUnavailable("the request was given up")
        step = job.prepare(before)
        infer_request = job.infer_request(step)
        # a job without batches has only one step, so this replaces no other reservation
        if step.batch is None:
            self._reserved = reserve(_call_bytes(job.served, step), "the call of the model")
        is_only = before is None and step.is_last
        # It is cheaper to let _replies send the call, but then two calls cannot be in flight.
        sends_now = job.is_pipelined and not is_only
        with request.timings.stage("triton"):
            if job.is_decoupled:
                self._in_flight.append(self._gateway.stream(infer_request, request.deadline))
            else:
                call = self._gateway.infer(infer_request, request.deadline)  # not sent yet
                self._in_flight.append(call)
                if sends_now:
                    call.send()
        # _give_up may have been called before this call was added to _in_flight
        if self._is_given_up:
            self._give_up()
        return step, self._in_flight[-1]

    def _begin_ahead(self, step: Step) -> tuple[Step, Call | Responses] | None:
        """If the job is pipelined, prepare and send the step that follows `step` before `step` is
        answered. Return None if there is no such step, or if it must begin later, for example
        because there is no memory for both."""
        if step.is_last or not self._job.is_pipelined:
            return None
        try:
            return self._begin(step)
        except (Overloaded, PayloadTooLarge):
            return None

    def _replies(self, call: Call | Responses) -> Iterator[InferReply]:
        """Send the call if `_begin` has not, and yield the replies as they arrive. After the last
        one, the call is no longer in flight."""
        replies = iter(call)
        while True:
            with self._job.request.timings.stage("triton"):
                reply = next(replies, None)
            if reply is None:
                break
            yield reply
        self._in_flight.remove(call)
