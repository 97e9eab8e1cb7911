"""What lies in the model repositories: which folders are models, which of them are loaded, what is wrong.

A repository is a folder of model folders; several lie over one another. Standard library only: what can be
told without a protobuf is told before anything starts, the rest by `serve --check` (serving/preparation/check.py).
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CONFIG = "config.pbtxt"
WEIGHTS = ("model.onnx", "model.plan", "model.pt", "model.savedmodel", "model.graphdef", "model.xml", "model.dali")
PLATFORMS = {  # Triton's platforms: backend and default file (core/src/constants.h)
    "onnxruntime_onnx": ("onnxruntime", "model.onnx"),
    "tensorrt_plan": ("tensorrt", "model.plan"),
    "pytorch_libtorch": ("pytorch", "model.pt"),
    "tensorflow_savedmodel": ("tensorflow", "model.savedmodel"),
    "tensorflow_graphdef": ("tensorflow", "model.graphdef"),
}
FILES = {backend: file for backend, file in PLATFORMS.values() if backend != "tensorflow"}
FILES |= {"python": "model.py", "openvino": "model.xml", "dali": "model.dali"}
LISTED = 8
_VERSION = re.compile(r"[1-9]\d*")
_COMMENT = re.compile(r"(\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')|#[^\n]*")
_PART = re.compile(r"\bmodel_name\s*:\s*[\"']([^\"']*)[\"']")
_THEN = re.compile(r"\bkey\s*:\s*[\"']then[\"']\s*,?\s*value\s*:?\s*\{\s*string_value\s*:\s*[\"']([^\"']*)[\"']")
_OWN_NAME = re.compile(r"^\s*name\s*:\s*[\"']([\w.-]+)[\"']", re.MULTILINE)


class LayoutError(Exception):
    """A repository is not laid out as one; `mistakes` says of each what was found and what was expected."""

    def __init__(self, mistakes: Sequence[str], example: str = "") -> None:
        super().__init__("\n".join([*mistakes, *([example] if example else [])]))
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True)
class Plan:
    """The repositories' final folders, the models that are loaded, the one of requests that name none ("" when
    there is no such), and what the log should say."""

    folders: tuple[Path, ...]
    load: tuple[str, ...]
    default: str
    warnings: tuple[str, ...]


def plan(folders: Sequence[Path], default: str = "", load: Sequence[str] = (), config_name: str = "") -> Plan:
    """What is served from `folders`; raises LayoutError with every mistake.

    `default` is the model of requests that name none: it and the parts of its ensemble are loaded then, and no
    other, unless `load` names them. With neither, all are loaded. `config_name` is Triton's --model-config-name.
    """
    warnings: list[str] = []
    if mistakes := list(_mistakes_of_permission(folders)):
        raise LayoutError(mistakes)
    final = tuple(_entered(folder, warnings) for folder in folders)
    models, mistakes = _collect(final, warnings)
    if mistakes:
        raise LayoutError(mistakes, example(final[0]))
    if unknown := [name for name in (*load, *([default] if default else [])) if name not in models]:
        raise LayoutError([_absent(name, load, models, final) for name in dict.fromkeys(unknown)])
    if not default and len(models) == 1:
        default = next(iter(models))
        warnings.append(
            f"no SAGEMAKER_TRITON_DEFAULT_MODEL_NAME is set: '{default}', the only model, answers what names none"
        )
    named = [*load, *([default] if default else [])]
    wanted = tuple(_with_parts(named or sorted(models), models, config_name))
    if mistakes := list(_mistakes_of_loaded(wanted, models, config_name)):
        raise LayoutError(mistakes, example(final[0]))
    return Plan(final, wanted, default, tuple(warnings))


def holds_models(folder: Path) -> bool:
    """Whether there is a model or something that was meant to be one: its mistakes are told then."""
    try:
        return is_model(folder) or any(is_model(one) or _holds_a_model(one) for one in folders_in(folder))
    except OSError:
        return folder.exists()


def is_model(folder: Path) -> bool:
    """A configuration, a version, or weights (which belong into a version); other containers' code/ is none."""
    files = (CONFIG, *WEIGHTS)
    return any((folder / name).exists() for name in files) or bool(versions(folder)) or bool(_configs(folder))


def _holds_a_model(folder: Path) -> bool:
    return any(map(is_model, folders_in(folder)))


def folders_in(folder: Path) -> list[Path]:
    """The folders in it by name, but for those that are hidden or that no model may be named as."""
    found = (path for path in folder.iterdir() if path.is_dir())
    return sorted(path for path in found if not path.name.startswith((".", "__")))


def versions(model: Path) -> list[Path]:
    """The folders that Triton takes for versions, the lowest number first."""
    found = (path for path in model.iterdir() if _VERSION.fullmatch(path.name) and path.is_dir())
    return sorted(found, key=lambda path: int(path.name))


def config_name(device: str) -> str:
    """Triton's --model-config-name on a machine that runs models on the `device`."""
    return "cpu" if device == "cpu" else ""


def config_file(model: Path, config_name: str) -> Path:
    """The configuration that Triton takes with --model-config-name."""
    own = model / "configs" / f"{config_name}.pbtxt"
    return own if config_name and own.is_file() else model / CONFIG


def config_text(model: Path, device: str) -> str:
    """The text of the configuration that Triton takes on that device, without comments; empty without a file."""
    return without_comments(_text(config_file(model, config_name(device))))


def parts_of(config: str) -> list[str]:
    """The models that the steps of an ensemble call, in order, by the text of its configuration."""
    plain = without_comments(config)
    return list(dict.fromkeys(_PART.findall(plain))) if "ensemble_scheduling" in plain else []


def without_comments(config: str) -> str:
    """The text of a configuration; a # in quotation marks begins no comment."""
    return _COMMENT.sub(lambda match: match[1] or "", config)


def called_by(config: str) -> list[str]:
    """The models that this one needs: an ensemble its parts, a chain the model that follows (parameter `then`)."""
    plain = _COMMENT.sub(lambda match: match[1] or "", config)
    return list(dict.fromkeys([*parts_of(config), *_THEN.findall(plain)]))


def example(folder: Path) -> str:
    """A repository as it should be."""
    return (
        "a model repository has a folder for each model, and in that one for each version:\n"
        f"  {folder}/\n    resnet/\n      {CONFIG}\n      1/\n        model.onnx\n"
        "a model.tar.gz of it: tar czf model.tar.gz -C REPOSITORY resnet"
    )


def _mistakes_of_permission(folders: Iterable[Path]) -> Iterator[str]:
    """What may not be read: an image's process is not root's, and an archive keeps its files' permissions."""
    for folder in folders:
        paths = [folder, *folder.rglob("*")] if folder.exists() else []
        if closed := [str(path) for path in paths if not _may_read(path)]:
            yield f"the user of this process, {os.geteuid()}, may not read {_list(closed)}: chmod -R a+rX {folder}"


def _may_read(path: Path) -> bool:
    return os.access(path, os.R_OK) and (not path.is_dir() or os.access(path, os.X_OK))


def _entered(folder: Path, warnings: list[str]) -> Path:
    """The folder, or the only one in it when that is the repository (tar czf model.tar.gz model_repository)."""
    try:
        inner = folders_in(folder)
        if not is_model(folder) and len(inner) == 1 and not is_model(inner[0]) and _holds_a_model(inner[0]):
            warnings.append(f"{folder} has no model but the folder '{inner[0].name}' of them: that is served")
            return inner[0]
    except OSError:
        pass  # told below
    return folder


def _collect(folders: Iterable[Path], warnings: list[str]) -> tuple[dict[str, Path], list[str]]:
    """({name: folder} of all models, mistakes)."""
    models: dict[str, Path] = {}
    mistakes: list[str] = []
    for folder in folders:
        try:
            mistakes += _mistakes_at_root(folder)
            found = [] if mistakes else folders_in(folder)
            named = {path.name: path for path in found if is_model(path)}
        except OSError as err:
            mistakes.append(f"the model repository {folder} cannot be read: {err.strerror}")
            continue
        warnings += [f"{path} is ignored: it is no model" for path in found if path.name not in named]
        mistakes += [f"two repositories have a model '{n}': {models[n]} and {named[n]}" for n in named if n in models]
        models = named | models
    if not models and not mistakes:
        mistakes = [f"there is no model in {folder}: found {_found(folder)}" for folder in folders]
    return models, mistakes


def _mistakes_at_root(folder: Path) -> Iterator[str]:
    if not folder.exists():
        yield f"there is no model repository {folder}"
    elif is_model(folder):
        own = _OWN_NAME.findall(_text(folder / CONFIG))
        name = own[0] if own else "MODEL"
        files = " ".join(sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")))
        yield (
            f"a model lies at the root of the model repository {folder} (found {_found(folder)}), and it must be in "
            f"a folder of its own, whose name is the model's: mkdir {name} && mv {files} {name}/"
        )


def _absent(name: str, load: Sequence[str], models: Iterable[str], folders: Sequence[Path]) -> str:
    variable = "SERVE_LOAD_MODELS" if name in load else "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
    where = ", ".join(map(str, folders))
    return f"{variable} names '{name}', and there is no folder of that name in {where}; its models are: {_list(models)}"


def _with_parts(names: Iterable[str], models: dict[str, Path], config_name: str) -> list[str]:
    """The names and, below them, all models that they call."""
    wanted: dict[str, None] = {}
    left = list(names)
    while left:
        name = left.pop(0)
        if name not in wanted:
            wanted[name] = None
            left += called_by(_text(config_file(models[name], config_name))) if name in models else []
    return list(wanted)


def _mistakes_of_loaded(names: Iterable[str], models: dict[str, Path], config_name: str) -> Iterator[str]:
    for name in names:
        if name not in models:
            users = [n for n in names if n in models and name in called_by(_text(config_file(models[n], config_name)))]
            yield f"the model '{users[0]}' calls '{name}', and there is no such model; there are {_list(models)}"
        elif not versions(models[name]):
            yield from _without_version(name, models[name], config_name)


def _without_version(name: str, folder: Path, config_name: str) -> Iterator[str]:
    if parts_of(_text(config_file(folder, config_name))):
        yield f"the ensemble '{name}' has no version: make an empty folder {folder}/1 (Triton needs one)"
    else:
        yield (
            f"the model '{name}' has no version: found {_found(folder)} in {folder}; expected a folder named by a "
            "number from 1 with the model file in it"
        )


def _configs(folder: Path) -> list[Path]:
    return list((folder / "configs").glob("*.pbtxt"))


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _found(folder: Path) -> str:
    return _list(path.name + ("/" if path.is_dir() else "") for path in sorted(folder.iterdir()))


def _list(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:LISTED]) + (f" and {len(found) - LISTED} more" if len(found) > LISTED else "") or "nothing"
