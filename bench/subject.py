"""One model without a server: its client and an engine (bench.sessions), as the peers and the limit run it.

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

from bench.sessions import ENGINES, ONNX_RUNTIME, Setting
from clients.base import Model, ModelClient, TensorSpec
from serving.codecs import Limits

LIMITS = Limits()


class Subject:
    """Bytes of instances in, predictions out, with the clients that are used with Triton."""

    def __init__(self, folder: Path, setting: Setting = Setting()) -> None:  # noqa: B008  # it is frozen
        self.session = ENGINES[setting.engine](folder / "1" / "model.onnx", setting)
        facts = json.loads((folder / "subject.json").read_text())
        self.client = client_of(facts)
        # config.pbtxt's names: in an INT8 file a tensor has several by OpenVINO's account.
        self.inputs, outputs = ([spec["name"] for spec in facts[side]] for side in ("inputs", "outputs"))
        self.outputs = list(self.client.outputs if self.client else ()) or outputs

    def predict(self, bodies: Sequence[bytes]) -> list[Any]:
        """One prediction per raw instance (an image file, a text), from one run."""
        client = self._required()
        limits = replace(LIMITS, side=client.side)
        return self._answer([client.codec.from_bytes(body, limits) for body in bodies])

    def predict_json(self, instances: Sequence[Any]) -> list[Any]:
        """The same for JSON instances: {"b64": …} or a string; for a model without a client, a row of numbers."""
        if self.client is None:
            found = self.run_rows(np.asarray(instances, dtype=np.float32))
            return [row.tolist() for row in found]
        limits = replace(LIMITS, side=self.client.side)
        return self._answer([self.client.codec.from_json(value, limits) for value in instances])

    def run_rows(self, rows: Any) -> Any:
        """The only output for the only input."""
        return self.session.run({self.inputs[0]: rows}, self.outputs)[self.outputs[0]]

    def _answer(self, instances: Sequence[Any]) -> list[Any]:
        client = self._required()
        tensors = client.preprocess(instances)
        feed = {name: tensors[name] for name in self.inputs}
        outputs = self.session.run(feed, self.outputs)
        return client.postprocess(outputs, tensors, instances, client.read_parameters({}))

    def _required(self) -> ModelClient:
        if self.client is None:
            raise TypeError("this model takes tensors")
        return self.client


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
    """Those models, or one of them, from BENCH_REPOSITORY, run by BENCH_ENGINE."""
    folder, setting = Path(os.environ["BENCH_REPOSITORY"]), Setting(os.environ.get("BENCH_ENGINE") or ONNX_RUNTIME)
    return {name: Subject(folder / name, setting) for name in ([only] if only else names())}


def predict_requests(subject: Subject, requests: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """One run for the instances of several requests (a peer's batch); splits the predictions by request."""
    predictions = iter(subject.predict_json([instance for request in requests for instance in request]))
    return [[next(predictions) for _ in request] for request in requests]
