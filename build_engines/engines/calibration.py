"""The data to calibrate INT8 with: inputs that the model's client makes from instances, for ONNX Runtime's tools."""

from collections.abc import Iterable
from pathlib import Path

from onnxruntime.quantization import CalibrationDataReader

from build_engines.errors import BuildError
from build_engines.measurement import instances
from build_engines.model_folder.spec import ModelSpec
from build_engines.progress import over
from build_engines.request import Request
from clients.base import Model, ModelClient, Tensors
from serving.inference.registry import make_client


def model_of(model_spec: ModelSpec, folder: Path) -> Model:
    """The model as clients see it."""
    settings = {"client": model_spec.client} if model_spec.client else {}
    return Model(
        name=folder.name,
        path=folder,
        inputs=model_spec.inputs,
        outputs=model_spec.outputs,
        max_batch_size=model_spec.max_batch_size,
        parameters=settings | dict(model_spec.settings),
    )


def client_of(model_spec: ModelSpec, folder: Path) -> ModelClient | None:
    """The model's client, with the files in the folder; BuildError when they do not fit together."""
    try:
        return make_client(model_of(model_spec, folder)) if model_spec.client else None
    except Exception as err:  # a client's code may raise anything
        raise BuildError(f"the client '{model_spec.client}' cannot be made for this model: {err}") from err


class Batches(CalibrationDataReader):  # type: ignore[misc]
    """Inputs, one batch after another, as ONNX Runtime's tools read them."""

    def __init__(self, batches: Iterable[Tensors]) -> None:
        self.batches = iter(batches)

    def get_next(self) -> Tensors | None:
        return next(self.batches, None)


def calibration_batches(client: ModelClient, family: str, request: Request) -> Batches:
    """The inputs of the calibration instances, one instance per batch."""
    return Batches(over(instances.for_calibration(client, family, request.calibration), "calibrating"))
