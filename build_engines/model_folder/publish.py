"""Fills a folder in a temporary place, checks it and renames it, so that readers see the old one or the new one."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.model_folder.record import RECORD, read_record
from serving.preparation.check import check_models
from serving.settings.table import Settings

SCRATCH, STALE = ".build-", 86400  # seconds


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, whose name Triton and the tools pass over; removed at the end, whatever happens, and
    with it `parent`, if that is new too and nothing else is in it.

    What a killed build left there is removed after a day.
    """
    new = not parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{SCRATCH}*"):
        if time.time() - left.stat().st_mtime > STALE:
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if new:
            with contextlib.suppress(OSError):
                parent.rmdir()


def check(folder: Path) -> None:
    """Checks the folder as `serve --check` does; BuildError with the first finding."""
    for finding in check_models(Settings.from_env({}), {folder.name: folder}):
        raise BuildError(f"the model would not be served: {finding.removeprefix(f'{folder.name}: ')}")


def keep_users_files(folder: Path, target: Path) -> None:
    """Links what a user put into `target` into the new folder: another version, a client.py."""
    made = {RECORD, *read_record(target).get("files", ())}
    for path in target.rglob("*"):
        name = path.relative_to(target)
        if path.is_file() and str(name) not in made and not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(path, folder / name)


def publish(folder: Path, target: Path) -> None:
    """Renames the complete folder to `target`, in place of what is there."""
    old = target.with_name(f".old-{target.name}-{os.getpid()}")
    if target.exists():
        target.rename(old)
    try:
        folder.rename(target)
    except BaseException:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
