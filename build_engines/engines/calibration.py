"""Reads the samples with which INT8 is calibrated, as inputs of the model. measures.py decides
which samples a folder or file contains, and which are held out."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from onnxruntime.quantization import CalibrationDataReader

from build_engines.errors import UsageError
from build_engines.families.find_family import by_client
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from build_engines.runners import model_feed
from build_engines.stored_model import client_of
from clients.base import Model, ModelClient, Tensors


def client_in(folder: Path, model_spec: ModelSpec) -> ModelClient | None:
    """Return the model's client, created from the files in the folder, or None if the model has
    none. Raise BuildError if the client cannot be created."""
    if not model_spec.client:
        return None
    model = Model(
        name=folder.name,
        path=folder,
        inputs=model_spec.inputs,
        outputs=model_spec.outputs,
        max_batch_size=model_spec.max_batch_size,
        parameters=model_spec.parameters,
    )
    return client_of(model)


class Batches(CalibrationDataReader):  # type: ignore[misc]
    """Supplies `batches`, one after the other, to ONNX Runtime's tools."""

    def __init__(self, batches: Iterable[Tensors]) -> None:
        self.batches = iter(batches)

    def get_next(self) -> Tensors | None:
        return next(self.batches, None)


def calibration_batches(client: ModelClient, request: Request) -> Batches:
    """Return a batch of the model's inputs for each sample of --calibration, except those held out
    for the comparison; with --no-compare, use all samples. Raise UsageError if the client's family
    has no samples, or if --calibration is missing, cannot be read, or has too few samples."""
    samples = by_client(client.model.parameters["client"]).samples
    if samples is None:
        raise UsageError(f"{client.model.parameters['client']} cannot be calibrated for INT8")
    if request.calibration is None:
        raise UsageError(
            "INT8 is calibrated: name a folder of images, or a file of texts, with --calibration"
        )
    held_out = False if request.compare else None  # None: take all samples
    return Batches(_tensors(client, samples.read(client, request.calibration, held_out)))


def _tensors(client: ModelClient, instances: Iterable[Any]) -> Iterator[Tensors]:
    """Yield the model's inputs for each instance, with default parameters. The client's other
    arrays, which only its `postprocess` needs, are left out."""
    names = {spec.name for spec in client.model.inputs}
    for instance in instances:
        prepared = client.prepare([instance], client.defaults)
        feed = model_feed(client.model, prepared)
        yield {name: array for name, array in feed.items() if name in names}
