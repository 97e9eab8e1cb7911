"""Runs an ONNX file by ONNX Runtime or OpenVINO in a process of its own: in one process the two have crashed."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from build_engines.errors import BuildError, first_line
from build_engines.measurement.runners import Runner, onnx_runner, runner_of
from build_engines.measurement.timing import LEAST_RUNS, threads
from build_engines.model_folder.stored import StoredModel
from clients.base import Tensors
from serving.repository.engines import OPENVINO, asked_of

HINT = "INFERENCE_PRECISION_HINT"  # of config.pbtxt's parameters, and of OpenVINO
SECONDS = 1.0  # for the runs of each


@dataclass(frozen=True)
class Way:
    """How a file is run: the engine, and OpenVINO's INFERENCE_PRECISION_HINT ("": what the processor is fastest in)."""

    engine: str
    precision: str = ""

    def load(self, path: Path) -> Runner:
        """In this process."""
        return openvino_runner(path, self.precision) if self.engine == OPENVINO else onnx_runner(path)


class IsolatedRunner:
    """A Runner; BuildError when the engine cannot load or run the file. `close` ends the process."""

    def __init__(self, path: Path, way: Way) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(path, way, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()

    def __call__(self, feed: Tensors) -> Tensors:
        self._pipe.send(feed)
        outputs: Tensors = self._answer()[0]
        return outputs

    def seconds(self, feed: Tensors) -> float:
        """Of one run, without the way to the other process."""
        self._pipe.send(feed)
        return float(self._answer()[1])

    def close(self) -> None:
        self._pipe.close()
        self._process.join()

    def _answer(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise BuildError(f"the engine's process died (exit code {self._process.exitcode})") from None
        if isinstance(answer, str):
            raise BuildError(answer)
        return answer


def _serve(path: Path, way: Way, pipe: Connection) -> None:
    """The other process: answers each feed with (outputs, seconds), or what went wrong, until the pipe is closed."""
    with suppress(EOFError, KeyboardInterrupt):
        try:
            run = way.load(path)
            pipe.send(({}, 0.0))
            while True:
                feed = pipe.recv()
                started = time.perf_counter()
                outputs = run(feed)
                pipe.send((outputs, time.perf_counter() - started))
        except EOFError:
            raise
        except Exception as err:  # the engines' exceptions have no base of their own
            pipe.send(str(err) if isinstance(err, BuildError) else first_line(err))


def openvino_runner(path: Path, precision: str) -> Runner:
    """With the options of the backend openvino."""
    import openvino

    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads(), "ENABLE_CPU_PINNING": False}
    hint = {HINT: precision} if precision else {}
    compiled = openvino.Core().compile_model(str(path), "CPU", options | hint)
    request = compiled.create_infer_request()
    inputs = {name for port in compiled.inputs for name in port.names}
    outputs = {name: index for index, port in enumerate(compiled.outputs) for name in port.names}

    def run(feed: Tensors) -> Tensors:
        request.start_async({name: array for name, array in feed.items() if name in inputs})
        request.wait()
        return {name: request.get_output_tensor(index).data.copy() for name, index in outputs.items()}

    return run


def served_runner(stored: StoredModel) -> Runner:
    """Runs the model's newest version by the engine that its configuration names."""
    if asked_of(stored.config) != OPENVINO:
        return runner_of(stored)
    hint = stored.config.parameters[HINT].string_value if HINT in stored.config.parameters else ""
    return IsolatedRunner(stored.file, Way(OPENVINO, hint))


def latencies(runners: Sequence[IsolatedRunner], feed: Tensors) -> list[float]:
    """The median milliseconds of each, in turns, so that a disturbance of the machine affects all of them."""
    for runner in runners:
        runner.seconds(feed)
    taken: list[list[float]] = [[] for _ in runners]
    end = time.perf_counter() + SECONDS * len(runners)
    while time.perf_counter() < end or len(taken[0]) < LEAST_RUNS:
        for each, runner in zip(taken, runners, strict=True):
            each.append(runner.seconds(feed))
    return [median(each) * 1e3 for each in taken]
