"""The limit for the scenarios: the best engine in its own process, without a server (bench.peers.limit)."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from bench.environments import python_of
from bench.load import Sample
from bench.repository import ROOT, Unprepared
from bench.sessions import NAMES, ONNX_RUNTIME, OPENVINO
from bench.workload import Workload


class Limit:
    """A process for each engine, because two in one process have crashed; `setting` is the one that the last round was
    measured with, in words."""

    def __init__(self, repository: Path) -> None:
        self.setting = ""
        there = [engine for engine in NAMES if engine != OPENVINO or importlib.util.find_spec(OPENVINO)]
        self._engines = {engine: _Engine(engine, repository) for engine in there}
        self._found: dict[tuple[Workload, int], tuple[str, str]] = {}  # the best engine and its setting

    def closed(self, work: Workload, callers: int, seconds: float) -> Sample:
        """A round with the best engine and setting; sets `setting`."""
        if (work, callers) not in self._found:
            self._found[work, callers] = self._search(work, callers)
        engine, self.setting = self._found[work, callers]
        return Sample(**self._engines[engine].order(work, callers=callers, measure=seconds)["sample"])

    def _search(self, work: Workload, callers: int) -> tuple[str, str]:
        tried = {name: engine.order(work, callers=callers, search=True) for name, engine in self._engines.items()}
        best = max(tried, key=lambda name: float(tried[name]["rate"]))
        return best, tried[best]["setting"]

    def predict(self, work: Workload, engine: str = ONNX_RUNTIME) -> list[Any]:
        """The predictions that every server with that engine must return."""
        if work.tensor is not None:
            return [[float(work.tensor.mean())]]
        process = self._engines.get(engine, self._engines[ONNX_RUNTIME])  # OpenVINO may be missing here
        return list(process.order(work, predict=True)["predictions"])

    def decode_seconds(self, work: Workload) -> float:
        """Seconds to decode one image at full size."""
        return float(self._engines[ONNX_RUNTIME].order(work, decode=True)["seconds"])

    def end(self) -> None:
        for engine in self._engines.values():
            engine.end()


class _Engine:
    """The process of one engine."""

    def __init__(self, engine: str, repository: Path) -> None:
        own = {"BENCH_REPOSITORY": str(repository), "BENCH_ENGINE": engine, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [str(python_of("")), "-m", "bench.peers.limit"],
            cwd=ROOT,
            env=os.environ | own,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def order(self, work: Workload, **order: Any) -> dict[str, Any]:
        """The answer to one order."""
        if self._process.stdin is None or self._process.stdout is None:
            raise TypeError("no pipes")
        line = {"model": work.model, "bodies": [body.hex() for body in work.instances]} | order
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise Unprepared("the limit has ended; its traceback is above")
        return dict(json.loads(answer))

    def end(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()
