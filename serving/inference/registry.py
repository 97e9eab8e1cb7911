"""The models that are served: the manager's table, joined with each model's client.

The repository is what lies on disk; the registry is what callers can name.
"""

import logging
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import orjson

from clients.base import Model, TensorSpec, leads_out
from serving.clients import OWN_CLIENT, make_client
from serving.errors import (
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    ModelNotLoaded,
    ModelNotReady,
    ModelRestarting,
    VersionNotFound,
)
from serving.models.admission import Admission
from serving.models.table import LOADING, Entry, Models, Table
from serving.repository.model_config import (
    ENGINE_REASON,
    backend_of,
    configs_of_parts,
    correlation_type,
    datatype_name,
    sequence_idle_seconds,
)
from serving.request import ServedModel
from serving.sessions import Sequencing
from serving.triton.errors import BackendDied
from serving.triton.gateway import IndexEntry, TritonGateway

log = logging.getLogger(__name__)


class Registry:
    """Looks models up by name; safe to share between threads.

    `table` says what is served, `admission` counts each call, which keeps its model loaded until it ends. `default`
    answers requests that name no model. A death of a model's process is reported to the datagram socket `deaths`.
    `platform_loads`: archives, which a platform loads where a call gets 404 model_not_loaded.
    """

    def __init__(
        self,
        gateway: TritonGateway,
        table: Table,
        admission: Admission,
        default: str = "",
        deaths: Path | None = None,
        platform_loads: bool = False,
    ) -> None:
        self.gateway, self.table, self.admission, self.default = gateway, table, admission, default
        self._deaths, self._platform_loads = deaths, platform_loads
        self._known = Models()
        self._served: dict[tuple[str, str], ServedModel] = {}  # by the load and the name
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._renewing = threading.Lock()

    @contextmanager
    def use(self, name: str | None, version: str | None = None) -> Iterator[ServedModel]:
        """Give the model called `name`, else the default one, else the only one, to one request, and keep it loaded
        until the request ends. Raise ModelNotFound, VersionNotFound, ModelNotLoaded, ModelNotReady, ModelFailed,
        ModelRestarting, ModelRefused, Overloaded or InvalidRequest."""
        name = name or self.default or self._only_name()
        while True:
            entry = self._ready(name)
            with self.admission.model(entry):
                if self._ready(name).load_id != entry.load_id:
                    continue  # it was replaced before this call counted
                began = monotonic()
                try:
                    served = self._once(entry)
                    self._check_version(served, version)
                    yield served
                except ModelNotReady:
                    self._ready(name)  # says more
                    raise
                except BackendDied as err:
                    raise self.report(served, err, began) from err
                return

    def report(self, served: ServedModel, error: BackendDied, began: float) -> ModelRestarting:
        """Tell the manager that a call which began at `began` (time.monotonic) met a dead process. Return the error
        that the caller sees."""
        restarting = ModelRestarting(served.name, error.details)
        if self._deaths is None:
            return restarting
        report = {"models": list(served.names), "details": error.details, "began": began}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sent:
                sent.setblocking(False)
                sent.sendto(orjson.dumps(report), str(self._deaths))
        except OSError as err:  # the manager is being started again; the next call reports it
            log.warning("the death of a process of model '%s' cannot be reported: %s", served.name, err)
        return restarting

    def models(self) -> Models:
        """Return the table as it is now."""
        return self.table.look()

    def index(self) -> dict[str, list[IndexEntry]]:
        """Return Triton's entries of each model's versions, by the name that callers know."""
        models = self.models()
        found: dict[str, list[IndexEntry]] = {name: [] for name in models.current}
        for each in self.gateway.index():
            if entry := models.by_triton_name.get(each.name):
                found[entry.name].append(each)
        return found

    def get(self, name: str) -> ServedModel:
        """Return the model called `name`. The first call makes its client. Raise as `use`."""
        return self._once(self._ready(name))

    def _ready(self, name: str) -> Entry:
        """Return the entry of a model that answers. Raise why it does not."""
        models = self.models()
        entry = (models.by_target if self._platform_loads else models.current).get(name)
        if self._platform_loads and (entry is None or (entry.state == LOADING and not entry.reason)):
            raise ModelNotLoaded(name)
        if entry is None:
            reasons = [
                reason for rejection in models.rejected if name in rejection.folders for reason in rejection.reasons
            ]
            raise ModelFailed(name, "; ".join(reasons)) if reasons else ModelNotFound(name, models.current)
        if error := models.error(entry):
            raise error
        return entry

    def _check_version(self, served: ServedModel, version: str | None) -> None:
        if version is None or self.gateway.is_model_ready(served.name, version):
            return
        if self._platform_loads:  # a 404 would say that the model is not loaded
            raise InvalidRequest(f"model '{served.name}' has no version '{version}'; leave it out for the latest")
        entries = self.index().get(served.name, [])
        raise VersionNotFound(served.name, version, [each.version for each in entries if each.state == "READY"])

    def _once(self, entry: Entry) -> ServedModel:
        """Return the model with its client. Only the callers of the same model wait while it is made."""
        key = (entry.load_id, entry.name)
        if served := self._served.get(key):
            return served
        self._forget_replaced()
        with self._locks.setdefault(key, threading.Lock()):
            if key not in self._served:
                self._served[key] = served_model(self.gateway, entry.triton_name, Path(entry.folder))
            return self._served[key]

    def _forget_replaced(self) -> None:
        """Forget the clients of loads that the table has no more, and the code of models' own clients."""
        models = self.models()
        if models is self._known:
            return
        with self._renewing:
            self._known = models
            loads = {(entry.load_id, entry.name) for entry in models.entries.values()}
            for key in self._locks.keys() - loads:
                self._locks.pop(key, None)
                served = self._served.pop(key, None)
                module = type(served.client).__module__ if served and served.client else ""
                if module.startswith(OWN_CLIENT):
                    sys.modules.pop(module, None)

    def _only_name(self) -> str:
        if self._platform_loads:
            where = "in X-Amzn-SageMaker-Target-Model, or POST /models/NAME/invoke"
            raise InvalidRequest(f"no model is named; name one {where}")
        names = sorted(self.models().current)
        if len(names) != 1:
            raise InvalidRequest(
                "no model is named; name one in the body's model_name, in "
                "X-Amzn-SageMaker-Custom-Attributes: model_name=…, in X-Amzn-SageMaker-Target-Model or as "
                f"?model_name=…; the models served are: {', '.join(names) or 'none'}"
            )
        return names[0]


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
