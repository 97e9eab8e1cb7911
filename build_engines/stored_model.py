"""Reads a model's folder in a repository: its configuration, its newest version, its client."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.build_record import read_record
from build_engines.engines.trtexec import this_gpu
from build_engines.errors import BuildError, explained
from build_engines.model_spec import MODEL_FILES
from clients.base import Model, ModelClient
from serving.clients import make_client
from serving.model_status.served_model import describe_model
from serving.repository.layout import CONFIG, config_file, versions
from serving.repository.model_config import Unreadable, read_merged


@dataclass(frozen=True)
class StoredModel:
    """A model's folder in a repository. `config` is the ModelConfig that open_model has read, and
    `model` describes the model to its client. `record` is the content of build.json, or {} if the
    file is missing or cannot be read."""

    folder: Path
    config: Any
    model: Model
    record: dict[str, Any]

    @property
    def version(self) -> Path:
        """Return the folder of the newest version. Raise BuildError if there is none."""
        folders = versions(self.folder)
        if not folders:
            raise BuildError(f"there is no version in {self.folder}: build the model first")
        return folders[-1]

    @property
    def file(self) -> Path:
        """Return the model file in the newest version. Raise BuildError if it does not exist, or if
        the configuration names neither a file nor a platform in MODEL_FILES."""
        name = self.config.default_model_filename or MODEL_FILES.get(self.config.platform, "")
        path = self.version / name
        if not name or not path.is_file():
            raise BuildError(
                f"{self.folder.name} "
                f"({self.config.platform or self.config.backend or 'no platform'}) has no "
                f"model file that can be run here in {self.version}"
            )
        return path

    def client(self) -> ModelClient | None:
        """Create the model's client, or return None if it has none. Raise BuildError if the client
        cannot be created."""
        return client_of(self.model)


def client_of(model: Model) -> ModelClient | None:
    """Create the client of `model`, or return None if it has none. Raise BuildError if the client
    cannot be created."""
    name = model.parameters.get("client", model.name)
    with explained(f"the client '{name}' cannot be made for this model"):
        return make_client(model)


def open_model(name: str, repository: Path, config_name: str | None = None) -> StoredModel:
    """Return the model `name` in the repository.

    `config_name` is Triton's --model-config-name. None means "cpu" on a machine without a GPU, and
    "" otherwise. Raise BuildError if the model does not exist, or if its configuration is missing
    or cannot be read.
    """
    if config_name is None:
        config_name = "" if this_gpu() else "cpu"
    folder = repository / name
    if not folder.is_dir():
        names = sorted(path.parent.name for path in repository.glob("[!.]*/" + CONFIG))
        raise BuildError(
            f"there is no model '{name}' in {repository}; there are: {', '.join(names) or 'none'}"
        )
    file = config_file(folder, config_name)
    if not file.is_file():
        raise BuildError(f"{folder} has no {CONFIG}")
    try:
        config = read_merged(folder, file)
    except Unreadable as err:
        raise BuildError(str(err)) from err
    return StoredModel(
        folder=folder,
        config=config,
        model=describe_model(name, folder, config),
        record=read_record(folder),
    )
