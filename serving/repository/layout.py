"""Defines the layout of a model repository (models, versions, configurations), and the result of
surveying the repositories. Standard library only.

A repository is a folder of model folders. Several repositories are served as one. `serve` never
writes to a repository: Triton reads links to its files (repository/staging.py).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.settings.settings import AUTO

PLATFORM_MODELS = Path("/opt/ml/model")
BUILT_IN_MODELS = Path(__file__).resolve().parents[2] / "model_repository"
CONFIG = "config.pbtxt"
CLIENT = "client.py"  # a model's own client, in the model's folder (serving/clients.py)
CLIENTS = "clients"  # the folder of clients that the models of a repository share
WEIGHTS = (
    "model.onnx",
    "model.plan",
    "model.pt",
    "model.savedmodel",
    "model.graphdef",
    "model.xml",
    "model.dali",
)
# maps Triton's platforms to their backends and default file names (Triton's core/src/constants.h)
PLATFORMS = {
    "onnxruntime_onnx": ("onnxruntime", "model.onnx"),
    "tensorrt_plan": ("tensorrt", "model.plan"),
    "pytorch_libtorch": ("pytorch", "model.pt"),
    "tensorflow_savedmodel": ("tensorflow", "model.savedmodel"),
    "tensorflow_graphdef": ("tensorflow", "model.graphdef"),
}
# maps backends to the default names of their files; TensorFlow's is left out, because it has two
FILES = {backend: file for backend, file in PLATFORMS.values() if backend != "tensorflow"}
FILES |= {"python": "model.py", "openvino": "model.xml", "dali": "model.dali"}
_VERSION = re.compile(r"[1-9]\d*")


class LayoutError(Exception):
    """Raised if the layout of a repository is invalid, or if a repository cannot be surveyed or
    checked. Each of the `mistakes` is a message; one with several lines shows a valid layout."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


def is_model(folder: Path) -> bool:
    """Return whether the folder contains a configuration, a version or weights. (The folder code/
    that other SageMaker containers use contains none of them.)"""
    if any((folder / name).exists() for name in (CONFIG, *WEIGHTS)):
        return True
    return bool(versions(folder)) or any(folder.glob("configs/*.pbtxt"))


def is_meant_for_models(folder: Path) -> bool:
    """Return whether the folder contains models, possibly in the wrong place, or cannot be read. If
    so, `serve` uses it or reports its mistakes."""
    try:
        if is_model(folder) or has_model_folders(folder):
            return True
        return any(map(has_model_folders, folders_in(folder)))
    except OSError:
        return folder.exists()


def has_model_folders(folder: Path) -> bool:
    return any(map(is_model, folders_in(folder)))


def final_folders(
    folders: Sequence[Path], platform_models: Path = PLATFORM_MODELS
) -> tuple[Path, ...]:
    """Return the repositories' folders. Replace "auto" by the platform's folder if that contains
    models, else by the folder of the built-in models."""
    if AUTO not in folders:
        return tuple(folders)
    auto = platform_models if is_meant_for_models(platform_models) else BUILT_IN_MODELS
    return tuple(auto if folder == AUTO else folder for folder in folders)


def folders_in(folder: Path) -> list[Path]:
    """Return the subfolders with names that a model may have (`is_name`), sorted by name."""
    return sorted(path for path in folder.iterdir() if is_name(path.name) and path.is_dir())


def is_name(name: str) -> bool:
    """Return whether a model's folder may be called `name`."""
    return not name.startswith((".", "__")) and not name.isdigit()


def versions(model: Path) -> list[Path]:
    """Return the folders that Triton treats as versions, in ascending order."""
    numbered = (path for path in model.iterdir() if _VERSION.fullmatch(path.name) and path.is_dir())
    return sorted(numbered, key=lambda path: int(path.name))


def own_client(model: Path, named: str = "") -> Path | None:
    """Return the file in the model repository that defines the client of `model`, or None if there
    is none. `named` is the value of the parameter `client` in config.pbtxt."""
    name = (named or model.name).replace("-", "_")
    files = [model / CLIENT]
    if name.isidentifier() and not name.startswith("_"):
        files.append(model.parent / CLIENTS / f"{name}.py")
    return next(filter(Path.is_file, files), None)


def config_file(model: Path, device: str) -> Path:
    """Return the configuration file for the `device`. The file may be partial, in which case
    model_config.py merges it into config.pbtxt."""
    cpu_config = model / "configs/cpu.pbtxt"
    return cpu_config if device == "cpu" and cpu_config.is_file() else model / CONFIG


@dataclass(frozen=True)
class Survey:
    """The result of surveying the repositories, which preparation/survey.py returns as JSON.

    `folders` are the final folders of the repositories, `models` the names of the models to load,
    and `default` the model for requests that name none, or "". `warnings`, and `engines`, which
    says which engines were chosen and why, are lines for the log. Startup fails if there are
    `mistakes` in the layout or `unreadable` configurations.
    """

    folders: Sequence[str] = ()
    models: Sequence[str] = ()
    default: str = ""
    warnings: Sequence[str] = ()
    engines: Sequence[str] = ()
    mistakes: Sequence[str] = ()
    unreadable: Sequence[str] = ()
