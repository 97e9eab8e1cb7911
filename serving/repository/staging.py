"""Writes the folders that Triton reads. The staged folder of a model, RUN_FOLDER/models/NAME/,
contains links to the model's files, and the config.pbtxt with which the model is served.

That config.pbtxt differs from the author's: it has the engine that was chosen for this machine,
Triton's names for the parts of an archive and, if all backends are Python-based, the fields that
were missing.
"""

import logging
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from serving.errors import ConfigError
from serving.host.files import digest, replace_file
from serving.host.tritonserver import only_python_backends
from serving.repository.checks import check, check_startable
from serving.repository.completion import complete, is_complete
from serving.repository.cpu_engine import Choice, leave_openvino, served_config, this_processor
from serving.repository.layout import CONFIG
from serving.repository.model_config import ENSEMBLE, backend_of, read_file, text_of
from serving.settings.settings import Settings
from serving.triton.quirks import PREFACE

log = logging.getLogger(__name__)
# bytes; larger files are linked rather than copied, because the disk may not have space for them
LARGEST_COPY = 16 * 2**20


class Store:
    """Triton's repository in the folder `root`. Different threads may stage different models at the
    same time. A model is prepared in another folder, which is then moved into the repository under
    a lock."""

    def __init__(self, root: Path, settings: Settings, backends: Path) -> None:
        self.root = root
        self.settings = settings
        self.backends = backends
        self._processor = this_processor(backends)
        self.only_python = only_python_backends(backends)
        self.lock = threading.Lock()  # held while a staged folder is added, changed or removed

    def path(self, triton_name: str) -> Path:
        return self.root / triton_name

    def stage(
        self,
        folder: Path,
        triton_name: str,
        names: Mapping[str, str] | None = None,
        root: Path | None = None,
    ) -> Choice | None:
        """Stage the model in `folder` as `triton_name`, in place of an earlier one. Return the
        engine that was chosen and why, or None if there was no choice.

        `names` maps the models that an ensemble calls to Triton's names for them. If `root` is
        given, the paths that config.pbtxt names must be inside that folder after links are
        resolved. Raise ConfigError if the model must not be loaded or cannot be completed.
        """
        if self.only_python:
            remedy = "rename its folder: at most 255 ASCII letters, digits, '.', '_' and '-'"
            check_startable("the model's name", triton_name, remedy)
        unfinished = self.root.with_name("unfinished") / triton_name
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            config, choice = served_config(folder, self.settings, self._processor)
            check(folder, config, self.settings, root)
            _fill(unfinished, folder, config, names or {})
            is_ensemble = backend_of(config) == ENSEMBLE
            if self.only_python and not is_ensemble and not is_complete(unfinished, config):
                source = f"the configuration of '{folder.name}'"
                choice = self._complete(unfinished, config, source) or choice
            self.root.mkdir(exist_ok=True)
            with self.lock:
                shutil.rmtree(self.path(triton_name), ignore_errors=True)
                unfinished.rename(self.path(triton_name))
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return choice

    def _complete(self, unfinished: Path, config: Any, source: str) -> Choice | None:
        """Complete the configuration in the folder `unfinished`. If that fails and OpenVINO was
        chosen, try again with ONNX Runtime, and return that choice. Raise ConfigError if the last
        try fails."""
        seconds = self.settings.load_timeout
        try:
            complete(unfinished, self.backends, source, seconds)
        except ConfigError as err:
            choice = leave_openvino(config, str(err))  # changes `config`
            if choice is None:
                raise
            (unfinished / CONFIG).write_text(text_of(config), encoding="utf-8")
            complete(unfinished, self.backends, source, seconds)
            return choice
        return None

    def leave_openvino(self, triton_name: str, reason: str) -> bool:
        """Switch a staged model from OpenVINO to ONNX Runtime, because OpenVINO rejects the model.
        Log this with Triton's `reason`. Return False, and change nothing, if `served_config` had
        not chosen OpenVINO for the model."""
        file = self.path(triton_name) / CONFIG
        config = read_file(file)
        words = PREFACE.sub("", reason).split()
        choice = leave_openvino(config, " ".join(words))
        if choice is None:
            return False
        with self.lock:
            replace_file(file, text_of(config).encode())
        log.warning("%s: %s", triton_name, choice)
        return True

    def remove(self, triton_name: str) -> None:
        with self.lock:
            shutil.rmtree(self.path(triton_name), ignore_errors=True)

    def names(self) -> set[str]:
        """Return the names of all staged models."""
        if not self.root.is_dir():
            return set()
        return {path.name for path in self.root.iterdir()}


def _fill(unfinished: Path, folder: Path, config: Any, names: Mapping[str, str]) -> None:
    """Fill a staged folder with links to the model's files and with its configuration. Before that,
    change `config`: remove its name and, in an ensemble, replace the names of the models that it
    calls as `names` says."""
    for entry in folder.iterdir():
        if entry.name not in (CONFIG, "configs"):
            (unfinished / entry.name).symlink_to(entry.absolute())
    config.name = ""  # Triton then uses the name of the folder
    for step in config.ensemble_scheduling.step:
        step.model_name = names.get(step.model_name, step.model_name)
    if backend_of(config) == ENSEMBLE:
        config.platform = ENSEMBLE  # Triton refuses an ensemble without a platform (quirks.py)
    (unfinished / CONFIG).write_text(text_of(config), encoding="utf-8")


def signature(*folders: Path | None) -> str:
    """Return a fingerprint that changes whenever a file in the folders changes, except hidden ones
    and __pycache__. Return "" if the first folder does not exist. Ignore folders that are None."""
    rows: list[str] = []
    with suppress(FileNotFoundError):  # a folder does not exist, or a file was just removed
        for folder in filter(None, folders):
            for path in _entries(folder):
                status = path.stat()
                file = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
                # a folder's status also changes with its hidden files, so leave it out
                state = "" if path.is_dir() else file
                rows.append(f"{path.relative_to(folder)} {state}")
    return digest("\n".join(rows)) if rows else ""


def copy_model(folder: Path, target: Path, clients: Path | None) -> None:
    """Copy a model's folder to `target`, and the folder of shared `clients`, if any, next to it.
    For a file larger than LARGEST_COPY, create a hard link or, if that is impossible, a symbolic
    link. Raise OSError."""
    target.mkdir(parents=True)
    for path in _entries(folder):
        copied = target / path.relative_to(folder)
        if path.is_dir():
            copied.mkdir()
        elif path.stat().st_size <= LARGEST_COPY:
            shutil.copy(path, copied)
        else:
            try:
                copied.hardlink_to(path.resolve())
            except OSError:
                copied.symlink_to(path.resolve())
    if clients:
        beside = target.with_name(clients.name)
        if not beside.exists():
            copy_model(clients, beside, None)


def _entries(folder: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield all files and folders under a folder, each folder before its contents, except hidden
    ones and __pycache__. Follow links, but not in circles."""
    above = (*above, os.path.realpath(folder))
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if os.path.realpath(path) in above:
            continue
        with suppress(FileNotFoundError):  # it was removed, or is a broken link
            path.stat()
            yield path
        if path.is_dir():
            yield from _entries(path, above)
