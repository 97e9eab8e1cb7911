"""Describes the models that Triton has loaded, and creates their clients. Each worker creates a
model's client when it first looks the model up, and then reuses it."""

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from clients.base import Model, ModelClient, TensorSpec
from serving.clients import forget, make_client
from serving.errors import InvalidRequest, ModelFailed, described
from serving.model_status.shared_files import ModelsFile
from serving.repository.cpu_engine import ENGINE_REASON
from serving.repository.model_config import (
    backend_of,
    configs_of_parts,
    correlation_type,
    datatype_name,
    sequence_idle_seconds,
)
from serving.sessions import Sequencing
from serving.triton.gateway import TritonGateway
from serving.triton.tensors import SIZES

log = logging.getLogger(__name__)


@lru_cache(maxsize=4096)
def _row_size(spec: TensorSpec) -> tuple[int, int]:
    """Return two numbers: the size in bytes of one row of a tensor, if each dynamic dimension and
    the length of each string is 1, and the number of dynamic dimensions."""
    fixed = [size for size in spec.shape if size != -1]
    dynamic = len(spec.shape) - len(fixed)
    return SIZES.get(spec.datatype, 1) * prod(fixed), dynamic


def _row_bytes(specs: Iterable[TensorSpec], row_shape: Sequence[int]) -> int:
    """Return the size in bytes of one row of all tensors together. `row_shape` is the shape of one
    row of one input, or () if it is not known yet. Assume that the N dynamic dimensions of a tensor
    have the last N sizes in `row_shape`. (This skips fixed dimensions before them, such as the
    channels of a picture.)"""
    total = 0
    for spec in specs:
        size, dynamic = _row_size(spec)
        if dynamic:
            size *= prod(row_shape[-dynamic:])
        total += size
    return total


@dataclass(frozen=True)
class ServedModel:
    """A model that Triton has loaded, and its client. A model without a client accepts only
    tensors.

    `client_error` says why the client could not be created. `sequencing` is set if the model's
    requests belong to sequences. `parts` names the models that an ensemble calls, directly or
    indirectly; `batched_parts` says whether any of them has a batch dimension. `engine` is Triton's
    backend, and `engine_reason` says why it was chosen. `labels` maps outputs to class names.
    `target` is the Target-Model of an archive.
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
    target: str = ""

    @property
    def name(self) -> str:
        """Return the model's name in Triton."""
        return self.model.name

    def input_bytes(self, shape: Sequence[int]) -> int:
        """Estimate the size in bytes of one row of all inputs together. `shape` is the shape of one
        row of one input, from which the dynamic dimensions of all inputs are taken."""
        return _row_bytes(self.model.inputs, shape)

    def output_bytes(self, names: Collection[str], shape: Sequence[int]) -> int:
        """Estimate the size in bytes of one row of the outputs `names` together (empty: all
        outputs). `shape` has the same meaning as in `input_bytes`."""
        outputs = self.model.outputs
        return _row_bytes([spec for spec in outputs if not names or spec.name in names], shape)

    @property
    def public_name(self) -> str:
        """Return the name that callers use for the model."""
        return self.target or self.name

    def require_client(self) -> ModelClient:
        """Return the client. Raise ModelFailed if it could not be created. If the model has none,
        raise InvalidRequest, which says what to send instead."""
        if self.client_error:
            raise ModelFailed(self.name, self.client_error)
        if self.client is None:
            raise InvalidRequest(
                f"model '{self.name}' has no client, so it takes tensors: send KServe v2 JSON "
                '{"inputs": [{"name", "shape", "datatype", "data"}]}, its binary form, or '
                "application/x-npy"
            )
        return self.client

    def example(self) -> bytes:
        """Return an example instance as a caller would send it: the content of example.* in the
        model's folder, or else the client's example. Raise InvalidRequest if there is none, or
        ModelFailed if the client is needed but could not be created."""
        if file := self.example_file():
            return file.read_bytes()
        example: bytes | None = getattr(self.require_client(), "example", None)
        if example is None:
            raise InvalidRequest(
                f"model '{self.name}' has no example: add one as example.* to the model's folder, "
                'or as example = b"…" to the client'
            )
        return example

    def example_file(self) -> Path | None:
        """Return the file example.* in the model's folder, or None if there is none."""
        return next(iter(sorted(self.model.path.glob("example.*"))), None)


class ServedModels(dict[tuple[str, str, str], ServedModel]):
    """A dictionary of the served models, keyed by Entry.key. A ServedModel is created when it is
    first looked up. Only requests to that model have to wait until it has been created."""

    def __init__(self, gateway: TritonGateway, table: ModelsFile) -> None:
        super().__init__()
        self._gateway = gateway
        self._table = table
        self._locks: dict[tuple[str, str, str], threading.Lock] = {}

    def __missing__(self, key: tuple[str, str, str]) -> ServedModel:
        """Create and return the ServedModel for this key. Remove the ServedModels whose keys are no
        longer in the table. Raise a ServingError."""
        entries = {entry.key: entry for entry in self._table.look().entries.values()}
        for old in set(self._locks) - entries.keys():
            self._locks.pop(old, None)
            unloaded = self.pop(old, None)
            if unloaded and unloaded.client:
                forget(unloaded.client)
        with self._locks.setdefault(key, threading.Lock()):
            if key not in self:
                _, triton_name, folder = key
                served = served_model(self._gateway, triton_name, Path(folder))
                entry = entries.get(key)  # None if the model was unloaded in the meantime
                self[key] = replace(served, target=entry.target if entry else "")
            return self[key]


def served_model(gateway: TritonGateway, triton_name: str, folder: Path) -> ServedModel:
    """Return the model that Triton serves as `triton_name`, with a client created from `folder`, or
    with a `client_error` if that fails. Raise a ServingError if Triton does not describe it."""
    config = gateway.config(triton_name)
    model = describe_model(triton_name, folder, config)
    parts = configs_of_parts(config, gateway.config)
    sequencing = sequencing_of([config, *parts.values()])
    served = ServedModel(
        model,
        sequencing=sequencing,
        parts=tuple(parts),
        engine=backend_of(config),
        engine_reason=model.parameters.get(ENGINE_REASON, ""),
        labels=_labels_of(model, config),
        batched_parts=any(part.max_batch_size for part in parts.values()),
    )
    try:
        return replace(served, client=make_client(model))
    except (Exception, SystemExit) as err:  # a client's module may contain anything
        reason = f"the client of model '{triton_name}' cannot be made: {described(err)}"
        log.exception(reason)
        return replace(served, client_error=reason)


def _labels_of(model: Model, config: Any) -> dict[str, list[bytes]]:
    """Return the class names of each output that has a file of labels, read as Triton reads them.
    Ignore a file that is missing or outside the model's folder."""
    labels = {}
    for output in config.output:
        if output.label_filename:
            with suppress(InvalidRequest, OSError):
                text = model.file(output.label_filename).read_bytes()
                labels[output.name] = text.split(b"\n")
    return labels


def sequencing_of(configs: Sequence[Any]) -> Sequencing | None:
    """Return how a model handles sequences, or None if it does not. `configs` are the ModelConfigs
    of the model and its parts. A sequence's id must fit all of them, and the shortest idle time
    counts."""
    sequences = [config for config in configs if config.HasField("sequence_batching")]
    if not sequences:
        return None
    types = map(correlation_type, sequences)
    idle_seconds = min(map(sequence_idle_seconds, sequences))
    return Sequencing(frozenset(filter(None, types)), idle_seconds)


def describe_model(name: str, folder: Path, config: Any) -> Model:
    """Convert a ModelConfig to the Model that clients see."""

    def specs(tensors: Iterable[Any]) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(
                spec.name,
                datatype_name(spec.data_type),
                tuple(spec.dims),
                getattr(spec, "optional", False),
            )
            for spec in tensors
        )

    parameters = {key: value.string_value for key, value in config.parameters.items()}
    return Model(
        name, folder, specs(config.input), specs(config.output), config.max_batch_size, parameters
    )
