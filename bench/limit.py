"""The limit for the scenarios: ONNX Runtime in its own process, without a server (bench.peers.limit)."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from bench.environments import python_of
from bench.load import Sample
from bench.repository import ROOT, Unprepared
from bench.workload import Workload


class Limit:
    """One such process; `setting` is the one that the last round was measured with, in words."""

    def __init__(self, repository: Path) -> None:
        self.setting = ""
        environ = os.environ | {"BENCH_REPOSITORY": str(repository), "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [str(python_of("")), "-m", "bench.peers.limit"],
            cwd=ROOT,
            env=environ,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def _order(self, work: Workload, **order: Any) -> dict[str, Any]:
        if self._process.stdin is None or self._process.stdout is None:
            raise TypeError("no pipes")
        line = {"model": work.model, "bodies": [body.hex() for body in work.instances]} | order
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise Unprepared("the limit has ended; its traceback is above")
        return dict(json.loads(answer))

    def closed(self, work: Workload, callers: int, seconds: float) -> Sample:
        """A round with the best setting; sets `setting`."""
        found = self._order(work, callers=callers, measure=seconds)
        self.setting = found["setting"]
        return Sample(**found["sample"])

    def predict(self, work: Workload) -> list[Any]:
        """The predictions that every server must return."""
        if work.tensor is not None:
            return [[float(work.tensor.mean())]]
        return list(self._order(work, predict=True)["predictions"])

    def decode_seconds(self, work: Workload) -> float:
        """Seconds to decode one image at full size."""
        return float(self._order(work, decode=True)["seconds"])

    def end(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()
