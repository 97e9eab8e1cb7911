"""Writes the archive that SageMaker loads: NAME.tar.gz, which contains the folder NAME. An
ensemble's archive also contains the models that the ensemble calls. If a model uses a client that
the models of its repository share, the folder of shared clients is added too.

Archiving a model twice gives identical files: entries have a fixed order, and no times or owners.
Copies of a model, for multi-model endpoints, have different names. The models that a copied
ensemble calls are renamed too, because if the setting `namespaces` is false, two loaded archives
cannot contain models of the same name.
"""

import gzip
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from build_engines.config_pbtxt import HEADER, render
from build_engines.errors import BuildError
from build_engines.stored_model import open_model
from clients import CLIENT_ALIASES
from serving.clients import client_names
from serving.repository.layout import versions
from serving.repository.model_config import configs_of_parts, parse_config, shared_clients

SKIPPED = shutil.ignore_patterns(".*", "__pycache__", "*.pyc", "*.part", "*.partial")


def archive(name: str, repository: Path, out: Path, copies: int = 0) -> list[Path]:
    """Write OUT/NAME.tar.gz. If `copies` is not 0, write one archive for each copy instead:
    OUT/NAME-0.tar.gz with the folder NAME_0, and so on. Return the paths of the archives.

    Raise BuildError if the model, or a model that it calls, is missing, has no version, or has no
    config.pbtxt that can be read.
    """
    config = open_model(name, repository, "").config
    parts = configs_of_parts(config, lambda part: open_model(part, repository, "").config)
    folders: dict[str, Path] = {}
    clients: dict[str, Path] = {}  # the folder of shared clients, keyed by the model that uses it
    for part, own_config in {name: config, **parts}.items():
        folder = repository / part
        if not versions(folder):
            raise BuildError(f"{folder} has no version with a model file in it: build it first")
        folders[part] = folder
        if shared := shared_clients(folder, own_config):
            clients[part] = shared
    out.mkdir(parents=True, exist_ok=True)
    endings = [f"-{number}" for number in range(copies)] or [""]  # "": the model itself
    return [_write(out, name, folders, clients, ending) for ending in endings]


def _write(
    out: Path, name: str, folders: Mapping[str, Path], clients: Mapping[str, Path], ending: str
) -> Path:
    """Write one archive and return its path. The models' files are linked into a temporary folder
    and archived there; then the archive is moved into `out`.

    `folders` maps each model's name to its folder, and `clients` maps the name of each model that
    uses a shared client to the folder of shared clients. `ending` is appended to the archive's
    name. For a copy it is "-0", for example; the models' names then end in "_0", and the
    configurations use these names. For the model itself it is "".
    """
    target = out / f"{name}{ending}.tar.gz"
    names = {part: f"{part}{ending.replace('-', '_')}" for part in folders}
    contents = {names[part]: folder for part, folder in folders.items()}
    contents |= {folder.name: folder for folder in sorted(clients.values())}
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=out) as scratch:
        linked, packed = Path(scratch) / "models", Path(scratch) / "packed"
        for packed_name, folder in contents.items():
            shutil.copytree(
                folder.resolve(), linked / packed_name, copy_function=os.symlink, ignore=SKIPPED
            )
        copied_parts = folders if ending else ()
        for part in copied_parts:
            for file in (linked / names[part]).rglob("*.pbtxt"):
                text = renamed(file.read_text(encoding="utf-8"), part, names, part in clients)
                file.unlink()  # the link, so that the repository's file is not overwritten
                file.write_text(text, encoding="utf-8")
        _pack(linked, contents, packed)
        packed.replace(target)
    return target


def _pack(parent: Path, names: Iterable[str], file: Path) -> None:
    """Write the folders with these names in `parent` to `file`, a tar.gz without times and owners.
    Replace links by the files they point to."""
    with (
        file.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w|", format=tarfile.GNU_FORMAT, dereference=True) as tar,
    ):
        for name in names:
            tar.add(parent / name, name, filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a copy of the entry without its time and owner, and with the usual permissions."""
    return entry.replace(
        deep=False,
        mtime=0,
        mode=0o755 if entry.isdir() else 0o644,
        uid=0,
        gid=0,
        uname="",
        gname="",
    )


def renamed(text: str, name: str, names: Mapping[str, str], is_client_shared: bool) -> str:
    """Return `text`, a configuration of the model `name`, changed for a copy of the model. `names`
    maps the name of each model in the archive to the name of its copy.

    A model without the parameter `client` uses the client of its own name, if there is one. Its
    copy has another name, so the copy's configuration gets the parameter. `is_client_shared` is
    true if the model's client is in the repository's folder of shared clients.
    """
    config = parse_config(text)
    if config.name:
        config.name = names[name]
    for step in config.ensemble_scheduling.step:
        step.model_name = names.get(step.model_name, step.model_name)
    has_client_of_its_name = is_client_shared or name in (*client_names(), *CLIENT_ALIASES)
    if has_client_of_its_name and "client" not in config.parameters:
        config.parameters["client"].string_value = name
    comments = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    return comments + render(config).removeprefix(HEADER)
