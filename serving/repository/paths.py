"""Resolves paths safely: every file that config.pbtxt names, and every link in an archive or, in
on-demand mode, in a model folder. Standard library only."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from serving.errors import ConfigError

LONGEST_NAME = 1024  # characters in a model's name
# Limits for an archive, and for a model folder in on-demand mode. The contents of linked folders
# count too, because Triton follows such links when it looks for changes.
MOST_ENTRIES = 200_000  # files and folders: a conda environment with torch has about 60,000
DEEPEST = 64  # levels of nested folders; a conda environment has about 20


def is_nameable(name: str) -> bool:
    """Return whether callers can send this name of a model. HTTP clients and proxies resolve the
    segments "", "." and ".." of a path, so a name with one of them would not arrive unchanged."""
    arrives_unchanged = {"", ".", ".."}.isdisjoint(name.split("/"))
    return len(name) <= LONGEST_NAME and name.isprintable() and arrives_unchanged


def with_sources(message: str, sources: Mapping[Path, Path]) -> str:
    """Return a message with the author's folders in place of their copies, which are the keys of
    `sources`. This replaces text, because Triton and the processes that survey and check models
    return each mistake as one text."""
    # replace models/m__part before models/m
    for copy in sorted(sources, reverse=True):
        message = message.replace(str(copy), str(sources[copy]))
    return message


def real_path(path: Path, root: Path | None = None) -> Path:
    """Return the file or folder that `path` resolves to, which may not exist. Raise ConfigError if
    it is outside `root` (None: it may be anywhere), if it cannot be resolved, or if it is a FIFO, a
    socket or a device, because reading one of these could block forever."""
    try:
        real = Path(os.path.realpath(path))
        if root and not real.is_relative_to(root):
            remedy = "put the file itself into the archive"
            raise ConfigError(path, f"leads to {real}, out of {root}", remedy)
        mode = real.stat().st_mode
    except FileNotFoundError:
        return real
    except (OSError, ValueError) as err:  # such as a circle of links, or a NUL byte
        reason = getattr(err, "strerror", None) or err
        raise ConfigError(path, f"leads nowhere: {reason}", "correct or remove it") from err
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ConfigError(path, "is neither a file nor a folder", "remove it")
    return real


def named_file(model: Path, name: str, root: Path | None = None, folder: str = "") -> Path:
    """Return the real path of a file that config.pbtxt names. `name` is relative to `folder`, which
    is inside the folder `model`. Links in the model's folder may lead anywhere in `root`. Raise
    ConfigError if the name itself leads out of the model's folder, or if real_path rejects the
    path."""
    inside = Path(os.path.normpath(Path(folder, name)))
    if Path(name).is_absolute() or inside.parts[:1] == ("..",):
        raise ConfigError(f"'{name}'", "is not inside the model's folder", "put the file there")
    return real_path(model / folder / name, root)


def check_entries(folder: Path, root: Path, most: int = MOST_ENTRIES) -> None:
    """Raise ConfigError if Triton cannot read a folder safely, because the folder contains a link
    that leads out of `root`, a FIFO, a socket, a device, links in a circle, a folder that may not
    be read, more than DEEPEST levels of folders, or more than `most` entries."""
    count = 0
    # folders to read, each with the real paths of itself and of the folders above it
    pending: list[tuple[Path, tuple[Path, ...]]] = [(folder, (real_path(folder, root),))]
    while pending:
        path, above = pending.pop()
        if len(above) > DEEPEST:
            raise ConfigError(path, f"is more than {DEEPEST} folders deep", "remove folders")
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    count += 1
                    if count > most:
                        problem = f"has more than {most} files, links followed"
                        raise ConfigError(folder, problem, "leave out what the model does not need")
                    if entry.is_file(follow_symlinks=False):
                        continue
                    real = real_path(Path(entry.path), root)
                    if real in above:
                        problem = f"leads to {real}, the folder that it is in"
                        raise ConfigError(entry.path, problem, "remove the link")
                    if real.is_dir():
                        pending.append((Path(entry.path), (*above, real)))
        except OSError as err:
            raise ConfigError(path, f"cannot be read: {err.strerror}", "correct its mode") from err
