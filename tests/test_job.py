"""Tests the loop of a request: the order in which its steps are prepared, sent, waited for and
finished."""

from collections.abc import Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.base import Model, TensorSpec
from serving.budget import NEVER, Deadline, allow_time
from serving.errors import InvalidRequest, TooLate, TritonUnavailable
from serving.job import Job, Run, Step
from serving.model_status.served_model import ServedModel
from serving.request import Request
from serving.triton.gateway import TritonGateway
from serving.triton.tensors import InferReply, InferRequest, Tensor

pytestmark = pytest.mark.unit
SPEC = TensorSpec("x", "INT64", (1,))
SERVED = ServedModel(Model("m", Path("m"), (SPEC,), (SPEC,)), None)


PLAIN, STREAM = Request("id"), Request("id", stream="text/event-stream")


class Steps(Job):
    """Steps that contain their number. Those in `partial` are finished together with the next
    one."""

    def __init__(self, count: int, request: Request = PLAIN, partial: Sequence[int] = ()) -> None:
        super().__init__(SERVED, request)
        self.log: list[str] = []
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
    """A call that logs what is done with it. Its reply is the number that was sent, `times`
    times."""

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

    def give_up(self) -> None:
        self.log.append(f"give up {self.number}")

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


def results_of(job: Steps) -> list[Any]:
    return list(Run(job, Gateway(job.log)).results())


def test_prepare_the_next_step_while_triton_runs_one() -> None:
    job = Steps(3)
    assert results_of(job) == [[1], [2], [3]]
    assert job.log == [
        *("prepare 1", "send 1"),
        *("prepare 2", "send 2", "wait 1", "finish [1]"),
        *("prepare 3", "send 3", "wait 2", "finish [2]"),
        *("wait 3", "finish [3]"),
    ]


def test_do_not_send_an_only_step_ahead() -> None:
    job = Steps(1)
    results_of(job)
    assert job.log == ["prepare 1", "wait 1", "finish [1]"]


def test_wait_for_the_previous_answer_if_a_step_needs_it() -> None:
    job = Steps(2)
    job.is_pipelined = False
    results_of(job)
    assert job.log == ["prepare 1", "wait 1", "finish [1]", "prepare 2", "wait 2", "finish [2]"]


def test_finish_partial_steps_with_the_one_that_completes_them() -> None:
    assert results_of(Steps(4, partial=(1, 2))) == [[1, 2, 3], [4]]


def test_return_a_result_per_response_of_a_stream_step_by_step() -> None:
    job = Steps(2, STREAM)
    assert results_of(job) == [[1], [1], [2], [2]]
    assert job.log[:5] == ["prepare 1", "wait 1", "finish [1]", "finish [1]", "prepare 2"]


@dataclass(frozen=True)
class Ended(Deadline):
    """A deadline that has passed when it is checked for the second time."""

    asked: list[None] = field(default_factory=list)

    def left(self, most: float = 0.0) -> float:
        self.asked.append(None)
        if len(self.asked) > 1:
            raise TooLate("ended")
        return most


def test_begin_no_step_after_the_deadline() -> None:
    job = Steps(3)

    def run() -> None:
        allow_time(Ended())
        results_of(job)

    with pytest.raises(TooLate):
        copy_context().run(run)
    assert job.log == ["prepare 1", "send 1", "close 1"]


def test_close_calls_if_a_later_step_is_wrong() -> None:
    class Wrong(Steps):
        def prepare(self, before: Step | None = None) -> Step:
            if before:
                raise InvalidRequest("wrong")
            return super().prepare(before)

    job = Wrong(2)
    with pytest.raises(InvalidRequest):
        results_of(job)
    assert job.log == ["prepare 1", "send 1", "close 1"]


def test_give_up_the_calls_of_a_cancelled_run_and_begin_no_more() -> None:
    job = Steps(2, STREAM)
    run = Run(job, Gateway(job.log))
    results = run.results()
    next(results)
    run.cancel()
    assert job.log[-1] == "give up 1"
    with pytest.raises(TritonUnavailable):
        list(results)
    assert "prepare 2" not in job.log
