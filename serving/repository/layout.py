"""The folders of a model repository: models, versions, configurations; and the survey's result.
Standard library only.

A repository is a folder of model folders; several are served as one. serve never writes to a
repository: Triton gets links to its files (repository/staging.py).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.settings.table import AUTO

PLATFORM_MODELS = Path("/opt/ml/model")
BUILT_IN_MODELS = Path(__file__).resolve().parents[2] / "model_repository"
CONFIG = "config.pbtxt"
CLIENT = "client.py"  # in a model's folder: its own client (serving/clients.py)
CLIENTS = "clients"  # in a repository: the folder of clients that its models share
WEIGHTS = (
    "model.onnx",
    "model.plan",
    "model.pt",
    "model.savedmodel",
    "model.graphdef",
    "model.xml",
    "model.dali",
)
PLATFORMS = {  # Triton's platforms: backend and default file (core/src/constants.h)
    "onnxruntime_onnx": ("onnxruntime", "model.onnx"),
    "tensorrt_plan": ("tensorrt", "model.plan"),
    "pytorch_libtorch": ("pytorch", "model.pt"),
    "tensorflow_savedmodel": ("tensorflow", "model.savedmodel"),
    "tensorflow_graphdef": ("tensorflow", "model.graphdef"),
}
FILES = {backend: file for backend, file in PLATFORMS.values() if backend != "tensorflow"}
FILES |= {"python": "model.py", "openvino": "model.xml", "dali": "model.dali"}
_VERSION = re.compile(r"[1-9]\d*")


class LayoutError(Exception):
    """A repository has a wrong layout. Each mistake says what was found and what was expected."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


def is_model(folder: Path) -> bool:
    """Return whether the folder has a configuration, a version or weights. Another container's
    code/ has none of them."""
    named = any((folder / name).exists() for name in (CONFIG, *WEIGHTS))
    return named or bool(versions(folder)) or any(folder.glob("configs/*.pbtxt"))


def holds_models(folder: Path) -> bool:
    """Return whether it has a model, or something that was meant to be one, whose mistakes must be
    reported."""
    try:
        return is_model(folder) or any(
            is_model(child) or has_a_model(child) for child in folders_in(folder)
        )
    except OSError:
        return folder.exists()


def has_a_model(folder: Path) -> bool:
    return any(map(is_model, folders_in(folder)))


def final_folders(
    folders: Sequence[Path], platform_models: Path = PLATFORM_MODELS
) -> tuple[Path, ...]:
    """Return the folders with a real one in place of "auto"."""
    auto = platform_models if AUTO in folders and holds_models(platform_models) else BUILT_IN_MODELS
    return tuple(auto if folder == AUTO else folder for folder in folders)


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in it, sorted by name, except hidden ones and those with a name that no
    model may have."""
    children = (path for path in folder.iterdir() if path.is_dir())
    return sorted(
        path
        for path in children
        if not path.name.startswith((".", "__")) and not path.name.isdigit()
    )


def versions(model: Path) -> list[Path]:
    """Return the folders that Triton regards as versions, the lowest number first."""
    numbered = (path for path in model.iterdir() if _VERSION.fullmatch(path.name) and path.is_dir())
    return sorted(numbered, key=lambda path: int(path.name))


def own_client(model: Path, named: str = "") -> Path | None:
    """Return the file of the client that the model repository has for `model`, None if it has none.
    `named` is config.pbtxt's parameter `client`."""
    name = (named or model.name).replace("-", "_")
    shared = (
        [model.parent / CLIENTS / f"{name}.py"] if name.isidentifier() and name[0] != "_" else []
    )
    return next((file for file in [model / CLIENT, *shared] if file.is_file()), None)


def config_file(model: Path, device: str) -> Path:
    """Return the configuration file for the `device`. If it is not whole, it is merged into
    config.pbtxt."""
    cpu_config = model / "configs/cpu.pbtxt"
    return cpu_config if device == "cpu" and cpu_config.is_file() else model / CONFIG


@dataclass(frozen=True)
class Survey:
    """The repositories' final folders, the models that are loaded, the one of requests that name
    none ("": there is no such), and what the log should say: `engines` which were chosen and why. A
    start ends with `mistakes`, those of the layout, or `unreadable`, those of configurations.
    preparation/survey.py makes it; it passes between processes as JSON."""

    folders: Sequence[str] = ()
    models: Sequence[str] = ()
    default: str = ""
    warnings: Sequence[str] = ()
    engines: Sequence[str] = ()
    mistakes: Sequence[str] = ()
    unreadable: Sequence[str] = ()
