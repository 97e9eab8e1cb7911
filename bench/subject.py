"""One model without a server: its client and an ONNX Runtime session, as the peers and the limit run it.

It imports only clients/ and serving.{codecs, errors} from this project, so that it runs in a peer's environment.
"""

import importlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clients.base import Model, ModelClient, TensorSpec
from serving.codecs import Limits

LIMITS = Limits()
SHORT = "20 µs of spinning"  # as our own backend's threads
SPINNING = {  # how a thread waits for the next part of a run: entries of ONNX Runtime's session configuration
    "no spinning": ("session.intra_op.allow_spinning", "0"),
    SHORT: ("session.intra_op.spin_duration_us", "20"),
    "spinning": ("session.intra_op.allow_spinning", "1"),
}


class Subject:
    """Bytes of instances in, predictions out, with the clients that are used with Triton."""

    def __init__(self, folder: Path, threads: int = 0, spinning: str = SHORT) -> None:
        """`threads` per run, 0: as many as processors; `spinning` is one of SPINNING."""
        self.session = session(folder / "1" / "model.onnx", threads, spinning)
        self.client = client_of(json.loads((folder / "subject.json").read_text()))
        self.input = self.session.get_inputs()[0].name

    def predict(self, bodies: Sequence[bytes]) -> list[Any]:
        """One prediction per raw instance (an image file, a text), from one run."""
        client = self._required()
        limits = replace(LIMITS, side=client.side)
        return self._answer([client.codec.from_bytes(body, limits) for body in bodies])

    def predict_json(self, instances: Sequence[Any]) -> list[Any]:
        """The same for JSON instances: {"b64": …} or a string; for a model without a client, a row of numbers."""
        if self.client is None:
            rows = np.asarray(instances, dtype=np.float32)
            return [row.tolist() for row in self.session.run(None, {self.input: rows})[0]]
        limits = replace(LIMITS, side=self.client.side)
        return self._answer([self.client.codec.from_json(value, limits) for value in instances])

    def _answer(self, instances: Sequence[Any]) -> list[Any]:
        client = self._required()
        tensors = client.preprocess(instances)
        names = [node.name for node in self.session.get_outputs()]
        feed = {node.name: tensors[node.name] for node in self.session.get_inputs()}
        outputs = dict(zip(names, self.session.run(names, feed), strict=True))
        return client.postprocess(outputs, tensors, instances, client.read_parameters({}))

    def _required(self) -> ModelClient:
        if self.client is None:
            raise TypeError("this model takes tensors")
        return self.client


def session(path: Path, threads: int, spinning: str) -> Any:
    """An ONNX Runtime session."""
    import onnxruntime as ort  # here, so that one who needs a client only does not load it

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
    options.add_session_config_entry(*SPINNING[spinning])
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def client_of(facts: dict[str, Any]) -> ModelClient | None:
    """The client that a subject.json describes; None for a model without one."""
    specs = {side: tuple(_spec(spec) for spec in facts[side]) for side in ("inputs", "outputs")}
    name = facts["parameters"].get("client")
    if name is None:
        return None
    model = Model(
        facts["name"],
        Path(facts["path"]),
        specs["inputs"],
        specs["outputs"],
        facts["max_batch_size"],
        facts["parameters"],
    )
    client: ModelClient = importlib.import_module(f"clients.{name}").Client(model)
    return client


def _spec(facts: dict[str, Any]) -> TensorSpec:
    return TensorSpec(facts["name"], facts["datatype"], tuple(facts["shape"]), facts["optional"])


def names() -> list[str]:
    """The names of the models that a peer serves."""
    return [name for name in os.environ["BENCH_MODELS"].split(",") if name]


def subjects(only: str = "") -> dict[str, Subject]:
    """Those models, or one of them, from BENCH_REPOSITORY."""
    folder = Path(os.environ["BENCH_REPOSITORY"])
    return {name: Subject(folder / name) for name in ([only] if only else names())}


def predict_requests(subject: Subject, requests: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """One run for the instances of several requests (a peer's batch); splits the predictions by request."""
    predictions = iter(subject.predict_json([instance for request in requests for instance in request]))
    return [[next(predictions) for _ in request] for request in requests]
