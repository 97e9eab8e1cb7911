"""The models that are served: Triton's index and configurations, joined with each model's client.

The repository is what lies on disk; the registry is what callers can name.
"""

import importlib
import importlib.util
import logging
import pkgutil
import sys
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import clients
from clients.base import Model, ModelClient, TensorSpec, leads_out
from serving.errors import InvalidRequest, ModelFailed, ModelNotFound, ModelNotReady, ServingError, VersionNotFound
from serving.inference.crashes import Crashes
from serving.repository.model_config import (
    ENGINE_REASON,
    ModelConfig,
    Unreadable,
    backend_of,
    configs_of_parts,
    correlation_type,
    datatype_name,
    read_config,
    sequence_idle_seconds,
    with_plan_remedies,
)
from serving.served_model import ServedModel
from serving.sessions import Sequencing
from serving.triton.gateway import IndexEntry, TritonGateway

if TYPE_CHECKING:
    from serving.repository.live import Refusal

log = logging.getLogger(__name__)
REFUSED = "Triton refused its configuration, or a model that it calls; the lines of tritonserver in the log say why"
OWN_CLIENT = "_model_client_"
NO_CRASHES = Crashes(None)
ALSO_CALLED = {"image-classification": "resnet", "object-detection": "yolov5"}  # the client, by what it does


class Registry:
    """Looks models up by name; safe to share between threads.

    `folders` are the model repositories, `only` names the models that Triton was told to load; empty: it knows no
    others. `crashes` knows those that are not served
    for a while. `device` is the one whose configurations are read.
    """

    def __init__(
        self,
        gateway: TritonGateway,
        folders: Sequence[Path],
        default: str = "",
        only: Collection[str] = (),
        crashes: Crashes = NO_CRASHES,
        device: str = "cpu",
    ) -> None:
        self.gateway, self.folders, self.crashes, self.device = gateway, folders, crashes, device
        self.default, self.only = default, only
        self._served: dict[Hashable, ServedModel] = {}
        self._locks: dict[Hashable, threading.Lock] = {}
        self._versions: dict[str, dict[str, IndexEntry]] = {}

    def index(self) -> dict[str, dict[str, IndexEntry]]:
        """Return {name: {version: entry}} as Triton reports it now, and keep it for `get`."""
        versions: dict[str, dict[str, IndexEntry]] = {}
        for entry in self.gateway.index():
            if self.only and entry.name not in self.only:
                continue  # Triton lists every folder
            versions.setdefault(entry.name, {})[entry.version] = entry
        self._versions = versions
        return versions

    @contextmanager
    def use(self, name: str | None, version: str | None = None) -> Iterator[ServedModel]:
        """Give the model called `name`, else the default one, else the only one, to one request. Raise ModelNotFound,
        VersionNotFound, ModelNotReady, ModelRestarting, ModelRefused or InvalidRequest."""
        name = name or self.default or self._only_name()
        with self.crashes.watch(partial(self.names, name)):
            served = self.get(name)
            self._check_version(name, version)
            yield served

    def trouble(self, name: str) -> ServingError | None:
        """Return why the model, or a part of it, is refused or restarting after its processes died, if it is."""
        return self.crashes.error(self.names(name))

    def names(self, name: str) -> Sequence[str]:
        """Return the names of the model and its parts. Triton does not describe an ensemble while a part is not loaded,
        so its folder is read, but only for a name that Triton knows: any other name comes from a caller."""
        if served := self._served.get(name):
            return served.names
        return [name, *configs_of_parts(self._on_disk(name), self._on_disk)] if name in self._versions else [name]

    def _on_disk(self, name: str) -> Any:
        try:
            return read_config(self._folder(name), self.device)
        except Unreadable:
            return ModelConfig()

    def _check_version(self, name: str, version: str | None) -> None:
        if version is not None and version not in self._ready_versions(name):
            self.index()
            if version not in (ready := self._ready_versions(name)):
                raise VersionNotFound(name, version, ready)

    def get(self, name: str) -> ServedModel:
        """Return the model called `name`. The first call makes its client."""
        if not self._ready_versions(name):
            self._require_ready(name)
        return self._once(name, lambda: self.load(name, self._folder(name)))

    def _once(self, key: Hashable, load: Callable[[], ServedModel]) -> ServedModel:
        """Return what `load` returned for `key`. Only the callers of the same model wait while it is loaded."""
        if served := self._served.get(key):
            return served
        with self._locks.setdefault(key, threading.Lock()):
            served = self._served[key] = self._served.get(key) or load()
            return served

    def _require_ready(self, name: str) -> None:
        index = self.index()
        if name not in index:
            raise ModelNotFound(name, index)
        if not self._ready_versions(name):
            self.crashes.check(self.names(name))
            raise self.why_not_ready(name, index[name].values())

    def why_not_ready(self, name: str, versions: Iterable[IndexEntry]) -> ServingError:
        """Return the error of a model that has no version that is ready."""
        entries = list(versions)
        states = {entry.state for entry in entries}
        if states <= {"UNAVAILABLE"} and (failed := {entry.reason for entry in entries if entry.has_failed}):
            return ModelFailed(name, with_plan_remedies("; ".join(sorted(failed)), self._folder(name)))
        if states == {""}:  # Triton listens only after it has tried all models
            return ModelFailed(name, REFUSED)
        reasons = "; ".join(sorted({f"{entry.state} {entry.reason}".strip() for entry in entries}))
        return ModelNotReady(f"model '{name}' is not ready ({reasons or 'not loaded'}); try again shortly")

    def _ready_versions(self, name: str) -> list[str]:
        return [v for v, entry in self._versions.get(name, {}).items() if entry.state == "READY"]

    def _only_name(self) -> str:
        names = sorted(self._all_names())
        if len(names) != 1:
            raise InvalidRequest(
                "no model is named; name one in the body's model_name, in "
                "X-Amzn-SageMaker-Custom-Attributes: model_name=…, in X-Amzn-SageMaker-Target-Model or as "
                f"?model_name=…; the models served are: {', '.join(names) or 'none'}"
            )
        return names[0]

    def _all_names(self) -> Collection[str]:
        return self._versions or self.index()

    def _folder(self, name: str) -> Path:
        return next((f / name for f in self.folders if (f / name).is_dir()), self.folders[0] / name)

    def load(self, name: str, folder: Path, triton_name: str = "") -> ServedModel:
        """Return the model that Triton serves as `triton_name`, else as `name`, with a client made from `folder`."""
        config = self.gateway.config(triton_name or name)
        model, parts = describe_model(name, folder, config), configs_of_parts(config, self._part)
        sequencing = next(filter(None, map(sequencing_of, (config, *parts.values()))), None)
        engine, why = backend_of(config), model.parameters.get(ENGINE_REASON, "")
        labels = output_labels(folder, config)
        batched = any(part.max_batch_size for part in parts.values())
        served = ServedModel(model, None, "", sequencing, tuple(parts), engine, why, triton_name, labels, batched)
        try:
            return replace(served, client=make_client(model))
        except Exception as err:
            reason = f"the client of model '{name}' cannot be made: {type(err).__name__}: {err}"
            log.exception(reason)
            return replace(served, client_error=reason)

    def refused(self) -> "Sequence[Refusal]":
        """Return the changes of model folders that were refused."""
        return ()

    def forget(self, served: ServedModel | None) -> None:
        """Drop the code of a model's own client, once the model is no longer served."""
        if served and served.client and (module := type(served.client).__module__).startswith(OWN_CLIENT):
            sys.modules.pop(module, None)

    def _part(self, name: str) -> Any:
        try:
            return self.gateway.config(name)
        except InvalidRequest:  # several archives have a part of that name, and Triton cannot tell which is meant
            return ModelConfig()


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


def make_client(model: Model) -> ModelClient | None:
    """Make the model's client: its folder's client.py, else the one that its `client` parameter names, else the one
    named as the model or its folder, else none. Raise what the client's code raises, or InvalidRequest."""
    module = _client_module(model)
    if module is None:
        return None
    client = getattr(module, "Client", None)
    if not (isinstance(client, type) and issubclass(client, ModelClient)):
        raise InvalidRequest(f"{module.__file__} defines no class Client(ModelClient)")
    return client(model)


def _client_module(model: Model) -> ModuleType | None:
    own_file = model.path / "client.py"
    if own_file.is_file():
        return _import_file(f"{OWN_CLIENT}{model.name}", own_file)
    if named := family_name(model.parameters.get("client", "")):
        if named not in families():
            raise InvalidRequest(f"there is no client '{named}'; the clients are: {', '.join(families())}")
        return importlib.import_module(f"clients.{named}")
    names = (model.name, model.path.name)  # an archive's folder has another name than Triton's model
    return next((importlib.import_module(f"clients.{name}") for name in names if name in families()), None)


def families() -> list[str]:
    """Return the names of the clients in this project: the modules of clients/, without its base."""
    names = (module.name for module in pkgutil.iter_modules(clients.__path__))
    return sorted(name for name in names if name != "base" and not name.startswith("_"))


def family_name(name: str) -> str:
    """Return the module of the client called `name`, which may be an alias."""
    return ALSO_CALLED.get(name, name.replace("-", "_"))


def family(name: str) -> type[ModelClient]:
    """Return the class of one of these clients."""
    client: type[ModelClient] = importlib.import_module(f"clients.{name}").Client
    return client


def _import_file(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidRequest(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
