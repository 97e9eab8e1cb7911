"""A model run by an engine in the process of a peer or of the limit. It imports no other module of this project."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
ONNX_RUNTIME, OPENVINO = "onnxruntime", "openvino"
NAMES = {ONNX_RUNTIME: "ONNX Runtime", OPENVINO: "OpenVINO"}
SHORT = "20 µs of spinning"  # as our own backend's threads
SPINNING = {  # how a thread waits for the next part of a run: entries of ONNX Runtime's session configuration
    "no spinning": ("session.intra_op.allow_spinning", "0"),
    SHORT: ("session.intra_op.spin_duration_us", "20"),
    "spinning": ("session.intra_op.allow_spinning", "1"),
}


@dataclass(frozen=True)
class Setting:
    """`threads` per run, 0: as many as processors; `spinning`, one of SPINNING, counts for ONNX Runtime."""

    engine: str = ONNX_RUNTIME
    threads: int = 0
    spinning: str = SHORT

    def __str__(self) -> str:
        words = [NAMES[self.engine], f"threads of a run: {self.threads or processors()}"]
        return ", ".join(words + [self.spinning] * (self.engine == ONNX_RUNTIME))


def processors() -> int:
    return len(os.sched_getaffinity(0))


class OnnxRuntime:
    """An ONNX file in a session of ONNX Runtime."""

    def __init__(self, file: Path, setting: Setting) -> None:
        import onnxruntime as ort  # here: only one engine is loaded in a process

        options = ort.SessionOptions()
        options.intra_op_num_threads = setting.threads or processors()
        options.add_session_config_entry(*SPINNING[setting.spinning])
        self._session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(self, feed: Arrays, outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """The named outputs for inputs by name; several threads may call it at once."""
        return dict(zip(outputs, self._session.run(list(outputs), dict(feed)), strict=True))


class OpenVino:
    """An ONNX file compiled by OpenVINO in the precision that it takes by itself, as our own backend does it: all
    processors are shared by as many streams as runs of `threads` fit on them."""

    def __init__(self, file: Path, setting: Setting) -> None:
        import openvino

        streams = max(1, processors() // (setting.threads or processors()))
        properties = {"PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": False}
        properties |= {"INFERENCE_NUM_THREADS": processors(), "NUM_STREAMS": streams}
        compiled = openvino.Core().compile_model(str(file), "CPU", properties)
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for _ in range(streams):
            self._idle.put(compiled.create_infer_request())

    def run(self, feed: Arrays, outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """The same."""
        request = self._idle.get()
        try:
            request.start_async(dict(feed), share_inputs=True)
            request.wait()
            return {name: np.array(request.get_tensor(name).data) for name in outputs}
        finally:
            self._idle.put(request)


ENGINES: dict[str, type[OnnxRuntime] | type[OpenVino]] = {ONNX_RUNTIME: OnnxRuntime, OPENVINO: OpenVino}
