"""A model that Triton has loaded, and its client: made at the first request that uses it, and kept."""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clients.base import Model, ModelClient, TensorSpec, leads_out
from serving.clients import forget, make_client
from serving.errors import InvalidRequest, ModelFailed
from serving.headers import Sequencing
from serving.model_status.shared_files import Table
from serving.repository.model_config import (
    ENGINE_REASON,
    backend_of,
    configs_of_parts,
    correlation_type,
    datatype_name,
    sequence_idle_seconds,
)
from serving.triton.gateway import TritonGateway

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServedModel:
    """A model that Triton has loaded, and its client; without a client it serves tensors only.

    `client_error` says why the client that the model names could not be made; `sequencing` is set for a model whose
    requests belong to sequences, and `parts` names the models that an ensemble is made of. `engine` is Triton's
    backend, `engine_reason` why it was chosen where there was a choice (repository/engines.py). `labels` has the
    class names of the outputs whose label_filename in config.pbtxt names a file. `batched_parts` says that a part of
    an ensemble has a batch dimension.
    """

    model: Model
    client: ModelClient | None = None
    client_error: str = ""
    sequencing: Sequencing | None = None
    parts: tuple[str, ...] = ()
    engine: str = ""
    engine_reason: str = ""
    labels: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    batched_parts: bool = False
    name: str = field(init=False)  # Triton's

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.model.name)

    @property
    def names(self) -> tuple[str, ...]:
        """Return Triton's name and those of the parts."""
        return (self.name, *self.parts)

    def require_client(self) -> ModelClient:
        """Return the client. Raise ModelFailed, or InvalidRequest that says what to send instead."""
        if self.client_error:
            raise ModelFailed(self.name, self.client_error)
        if self.client is None:
            raise InvalidRequest(
                f"model '{self.name}' has no client, so it takes tensors: send KServe v2 JSON "
                '{"inputs": [{"name", "shape", "datatype", "data"}]}, its binary form, or application/x-npy'
            )
        return self.client

    def example(self) -> bytes:
        """Return one instance as a caller would post it: the folder's example.*, else the client's own."""
        own = self.example_file()
        return own.read_bytes() if own else self.require_client().example

    def example_file(self) -> Path | None:
        """Return the folder's example.*, None if it has none."""
        return next(iter(sorted(self.model.path.glob("example.*"))), None)


class ServedModels(dict[tuple[str, str, str], ServedModel]):
    """The models by Entry.key. One that is missing is made, while only the requests to this model wait."""

    def __init__(self, gateway: TritonGateway, table: Table) -> None:
        super().__init__()
        self._gateway, self._table = gateway, table
        self._locks: dict[tuple[str, str, str], threading.Lock] = {}

    def __missing__(self, key: tuple[str, str, str]) -> ServedModel:
        """Raise a ServingError."""
        keys = {entry.key for entry in self._table.look().entries.values()}
        for old in [each for each in list(self._locks) if each not in keys]:
            self._forget(old)
        with self._locks.setdefault(key, threading.Lock()):
            if key not in self:
                self[key] = served_model(self._gateway, key[1], Path(key[2]))
            return self[key]

    def _forget(self, key: tuple[str, str, str]) -> None:
        """Forget the model of a load that the table has no more, with the code of its own client."""
        self._locks.pop(key, None)
        served = self.pop(key, None)
        if served and served.client:
            forget(served.client)


def served_model(gateway: TritonGateway, triton_name: str, folder: Path) -> ServedModel:
    """Return the model that Triton serves by that name, with a client made from `folder`. Raise a ServingError."""
    config = gateway.config(triton_name)
    model, parts = describe_model(triton_name, folder, config), configs_of_parts(config, gateway.config)
    sequencing = next(filter(None, map(sequencing_of, (config, *parts.values()))), None)
    engine, why = backend_of(config), model.parameters.get(ENGINE_REASON, "")
    labels = output_labels(folder, config)
    batched = any(part.max_batch_size for part in parts.values())
    served = ServedModel(model, None, "", sequencing, tuple(parts), engine, why, labels, batched)
    try:
        return replace(served, client=make_client(model))
    except Exception as err:
        reason = f"the client of model '{triton_name}' cannot be made: {type(err).__name__}: {err}"
        log.exception(reason)
        return replace(served, client_error=reason)


def sequencing_of(config: Any) -> Sequencing | None:
    """Return the model's sequencing; for an ensemble, that of its first part that has one."""
    id_type = correlation_type(config)
    return Sequencing(id_type, sequence_idle_seconds(config)) if id_type else None


def output_labels(folder: Path, config: Any) -> dict[str, list[bytes]]:
    """Return the lines of each output's label_filename, as Triton reads them; of no file outside the model's folder."""
    files = {output.name: output.label_filename for output in config.output if output.label_filename}
    return {
        name: (folder / file).read_bytes().split(b"\n")
        for name, file in files.items()
        if not leads_out(file) and (folder / file).is_file()
    }


def describe_model(name: str, folder: Path, config: Any) -> Model:
    """Return a ModelConfig as clients see it."""
    return Model(
        name=name,
        path=folder,
        inputs=tuple(_spec(tensor) for tensor in config.input),
        outputs=tuple(_spec(tensor) for tensor in config.output),
        max_batch_size=config.max_batch_size,
        parameters={key: value.string_value for key, value in config.parameters.items()},
    )


def _spec(tensor: Any) -> TensorSpec:
    optional = bool(getattr(tensor, "optional", False))
    return TensorSpec(tensor.name, datatype_name(tensor.data_type), tuple(tensor.dims), optional)
