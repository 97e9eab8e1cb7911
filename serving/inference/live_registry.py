"""The registry of a server whose models are replaced while it serves (SERVE_RELOAD, repository/live.py)."""

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from serving.errors import ModelFailed, ModelNotFound, ServingError
from serving.inference.crashes import Crashes
from serving.inference.registry import Registry
from serving.repository.live import LiveModel, LiveModels, Refusal, Table
from serving.served_model import ServedModel
from serving.triton.gateway import IndexEntry, TritonGateway


class LiveRegistry(Registry):
    """Gives each call one state of its model: its client and what Triton has loaded come from the same copy of the
    model's folder, and that copy is not unloaded before the call ends."""

    def __init__(self, gateway: TritonGateway, live: LiveModels, default: str, crashes: Crashes) -> None:
        super().__init__(gateway, [live.repository], default, crashes=crashes)
        self._live = live
        self._known: Table | None = None
        self._renewing = threading.Lock()

    def index(self) -> dict[str, dict[str, IndexEntry]]:
        """Return Triton's index by the names that callers know."""
        entries, table = list[IndexEntry](), Table()
        while table is not self._live.table():  # else the entries may say that what was replaced is unloaded
            table, entries = self._live.table(), self.gateway.index()
        found: dict[str, dict[str, IndexEntry]] = {model.triton_name: {} for model in table.models.values()}
        for entry in entries:
            if entry.name in found:
                found[entry.name][entry.version] = entry
        self._versions = {name: found[model.triton_name] for name, model in table.models.items()}
        return self._versions

    @contextmanager
    def use(self, name: str | None, version: str | None = None) -> Iterator[ServedModel]:
        """Give the model to one request, as Registry.use does, and keep its copy loaded until the request ends."""
        name = name or self.default or self._only_name()
        with self._live.using(name) as model:
            if model is None:
                raise self._missing(name)
            with self.crashes.watch(partial(self._names_of, model)):
                served = self._of(name, model)
                self._check_version(name, version)
                yield served

    def get(self, name: str) -> ServedModel:
        """Return the model called `name`. The first call makes its client."""
        models = self._live.table().models
        if name not in models:
            raise self._missing(name)
        return self._of(name, models[name])

    def _missing(self, name: str) -> ServingError:
        """Return the error of a model that is not served: why its folder was refused, if it was."""
        table = self._live.table()
        reasons = [reason for refusal in table.refused if name in refusal.folders for reason in refusal.reasons]
        return ModelFailed(name, "; ".join(reasons)) if reasons else ModelNotFound(name, table.models)

    def refused(self) -> Sequence[Refusal]:
        """Return the changes of model folders that were refused."""
        return self._live.table().refused

    def _of(self, name: str, model: LiveModel) -> ServedModel:
        self._renew()
        return self._once(model, lambda: self._loaded(name, model))

    def _loaded(self, name: str, model: LiveModel) -> ServedModel:
        try:
            return self.load(name, self._live.path(model), model.triton_name)
        except ServingError:
            self._require_ready(name)  # which says more
            raise

    def names(self, name: str) -> Sequence[str]:
        model = self._live.table().models.get(name)
        return self._names_of(model) if model else [name]

    def _names_of(self, model: LiveModel) -> Sequence[str]:
        if served := self._served.get(model):
            return served.names
        models = self._live.table().models
        left, found = [model], dict[LiveModel, None]()
        while left:
            if (one := left.pop(0)) not in found:
                found[one] = None
                left += [models[part] for part in one.parts if part in models]
        return [one.triton_name for one in found]

    def _all_names(self) -> Collection[str]:
        return self._live.table().models.keys()

    def _renew(self) -> None:
        """Forget the clients of copies that are no longer served."""
        table = self._live.table()
        if table is self._known:
            return
        with self._renewing:
            self._known, self._versions = table, {}
            for model in set(self._served) - set(table.models.values()):
                self.forget(self._served.pop(model))
                self._locks.pop(model, None)
