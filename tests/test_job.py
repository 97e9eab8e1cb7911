"""The loop of a request: in which order steps are prepared, sent, waited for and finished."""

from collections.abc import Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.base import Model, TensorSpec
from serving.budget import NEVER, Deadline, allow_time
from serving.errors import InvalidRequest, TooLate
from serving.job import Job, Run, Step
from serving.model_status.served_model import ServedModel
from serving.request import Request
from serving.triton.gateway import TritonGateway
from serving.triton.tensors import InferReply, InferRequest, Tensor

pytestmark = pytest.mark.unit
SPEC = TensorSpec("x", "INT64", (1,))
SERVED = ServedModel(Model("m", Path("m"), (SPEC,), (SPEC,)), None)


class Steps(Job):
    """Steps that carry their number; those in `partial` are finished together with the next."""

    def __init__(
        self, log: list[str], count: int, request: Request, partial: Sequence[int] = ()
    ) -> None:
        super().__init__(SERVED, request)
        self.log = log
        self.count = count
        self.partial = partial
        self.is_pipelined = not self.is_decoupled

    def prepare(self, before: Step | None = None) -> Step:
        number = before.batch + 1 if before else 1
        self.log.append(f"prepare {number}")
        tensor = Tensor.of("x", np.array([number]))
        is_last = number == self.count
        return Step([tensor], batch=number, is_partial=number in self.partial, is_last=is_last)

    def finish(self, step: Step, replies: Sequence[InferReply]) -> Any:
        numbers = [int(reply.outputs[0].array()[0]) for reply in replies]
        self.log.append(f"finish {numbers}")
        return numbers


class Call:
    """Logs what is done with a call; its reply is the number that was sent, `times` times."""

    def __init__(self, log: list[str], request: InferRequest, times: int = 1) -> None:
        self.log = log
        self.request = request
        self.times = times
        self.number = int(request.inputs[0].array()[0])

    def send(self) -> None:
        self.log.append(f"send {self.number}")

    def __iter__(self) -> Iterator[InferReply]:
        self.log.append(f"wait {self.number}")
        for _ in range(self.times):
            yield InferReply("1", self.request.inputs)

    def cancel(self) -> None:
        self.log.append(f"cancel {self.number}")

    def close(self) -> None:
        self.log.append(f"close {self.number}")


class Gateway(TritonGateway):
    def __init__(self, log: list[str]) -> None:
        super().__init__("127.0.0.1:1", 1.0)
        self.log = log

    def infer(self, request: InferRequest, deadline: Deadline = NEVER) -> Any:
        return Call(self.log, request)

    def stream(self, request: InferRequest, deadline: Deadline = NEVER) -> Any:
        return Call(self.log, request, times=2)


REQUEST = Request("id")
STREAM = replace(REQUEST, stream="text/event-stream")


def test_prepare_the_next_step_while_triton_runs_one() -> None:
    log: list[str] = []
    results = list(Run(Steps(log, 3, REQUEST), Gateway(log)).results())
    assert results == [[1], [2], [3]]
    assert log == [
        *("prepare 1", "send 1"),
        *("prepare 2", "send 2", "wait 1", "finish [1]"),
        *("prepare 3", "send 3", "wait 2", "finish [2]"),
        *("wait 3", "finish [3]"),
    ]


def test_do_not_send_an_only_step_ahead() -> None:
    log: list[str] = []
    list(Run(Steps(log, 1, REQUEST), Gateway(log)).results())
    assert log == ["prepare 1", "wait 1", "finish [1]"]


def test_wait_for_the_previous_answer_if_a_step_needs_it() -> None:
    log: list[str] = []
    job = Steps(log, 2, REQUEST)
    job.is_pipelined = False
    list(Run(job, Gateway(log)).results())
    assert log == ["prepare 1", "wait 1", "finish [1]", "prepare 2", "wait 2", "finish [2]"]


def test_finish_partial_steps_with_the_one_that_completes_them() -> None:
    log: list[str] = []
    job = Steps(log, 4, REQUEST, partial=(1, 2))
    assert list(Run(job, Gateway(log)).results()) == [[1, 2, 3], [4]]


def test_return_a_result_per_response_of_a_stream_step_by_step() -> None:
    log: list[str] = []
    results = list(Run(Steps(log, 2, STREAM), Gateway(log)).results())
    assert results == [[1], [1], [2], [2]]
    assert log[:4] == ["prepare 1", "wait 1", "finish [1]", "finish [1]"]
    assert log[4] == "prepare 2"


@dataclass(frozen=True)
class Ended(Deadline):
    """Has ended when it is asked for the second time."""

    asked: list[None] = field(default_factory=list)

    def left(self, most: float = 0.0) -> float:
        self.asked.append(None)
        if len(self.asked) > 1:
            raise TooLate("ended")
        return most


def test_begin_no_step_after_the_deadline() -> None:
    log: list[str] = []

    def run() -> None:
        allow_time(Ended())
        list(Run(Steps(log, 3, REQUEST), Gateway(log)).results())

    with pytest.raises(TooLate):
        copy_context().run(run)
    assert log == ["prepare 1", "send 1", "close 1"]


def test_close_calls_if_a_later_step_is_wrong() -> None:
    class Wrong(Steps):
        def prepare(self, before: Step | None = None) -> Step:
            if before:
                raise InvalidRequest("wrong")
            return super().prepare(before)

    log: list[str] = []
    with pytest.raises(InvalidRequest):
        list(Run(Wrong(log, 2, REQUEST), Gateway(log)).results())
    assert log == ["prepare 1", "send 1", "close 1"]


def test_cancel_all_calls_of_a_cancelled_run() -> None:
    log: list[str] = []
    run = Run(Steps(log, 2, STREAM), Gateway(log))
    results = run.results()
    next(results)
    run.cancel()
    assert log[-1] == "cancel 1"
    list(results)
    assert log[log.index("prepare 2") + 1] == "cancel 2"
