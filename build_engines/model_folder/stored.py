"""A model of a repository: its configuration, its tensors, its client, its file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.engines.trtexec import this_gpu
from build_engines.errors import BuildError
from build_engines.model_folder.files import read_record
from build_engines.model_folder.spec import MODEL_FILES
from clients.base import Model, ModelClient
from serving.inference.registry import describe_model, make_client
from serving.repository.layout import CONFIG, config_file, versions
from serving.repository.model_config import Unreadable, read_merged


@dataclass(frozen=True)
class StoredModel:
    """`config` is the ModelConfig that this machine uses, read from `config_file`; `record` the build's build.json ({}
    without one)."""

    folder: Path
    config_file: Path
    config: Any
    model: Model
    record: dict[str, Any]

    @property
    def version(self) -> Path:
        """The folder of the newest version; BuildError without one."""
        found = versions(self.folder)
        if not found:
            raise BuildError(f"there is no version in {self.folder}: build the model first")
        return found[-1]

    @property
    def file(self) -> Path:
        """What is served of that version."""
        name = self.config.default_model_filename or MODEL_FILES.get(self.config.platform, "")
        path = self.version / name
        if not name or not path.is_file():
            raise BuildError(
                f"{self.folder.name} ({self.config.platform or self.config.backend or 'no platform'}) has "
                f"no model file that can be run here in {self.version}"
            )
        return path

    def client(self) -> ModelClient | None:
        """Its client, if any; BuildError when it cannot be made."""
        try:
            return make_client(self.model)
        except Exception as err:  # a client's code may raise anything
            raise BuildError(f"the client of {self.folder.name} cannot be made: {err}") from err


def open_model(name: str, repository: Path, config_name: str | None = None) -> StoredModel:
    """The model of that name; BuildError when it is not there or its configuration cannot be read.

    `config_name` is Triton's --model-config-name; None: "cpu" on a machine without a GPU.
    """
    if config_name is None:
        config_name = "" if this_gpu() else "cpu"
    folder = repository / name
    if not folder.is_dir():
        there = sorted(path.name for path in repository.iterdir() if path.is_dir()) if repository.is_dir() else []
        raise BuildError(
            f"there is no model '{name}' in {repository}; there are: "
            f"{', '.join(n for n in there if not n.startswith('.')) or 'none'}"
        )
    file = config_file(folder, config_name)
    try:
        config = read_merged(folder, file)
    except Unreadable as err:
        raise BuildError(str(err)) from err
    if not file.is_file():
        raise BuildError(f"{folder} has no {CONFIG}")
    return StoredModel(
        folder=folder,
        config_file=file,
        config=config,
        model=describe_model(name, folder, config),
        record=read_record(folder),
    )
