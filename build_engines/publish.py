"""Checks a finished folder, loads it into a tritonserver as a test, and moves it into the
repository.

A folder is built under a temporary name, and renamed when it is complete.
"""

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from build_engines.build_record import RECORD, read_record, reference_folder
from build_engines.errors import BuildError
from build_engines.request import ON_A_GPU, Request
from serving.host.tritonserver import backend_directory, binary
from serving.preparation.check import check_models, failures_in_tritonserver
from serving.repository.model_config import ENSEMBLE, backend_of, configs_of_parts, read_config
from serving.repository.paths import with_sources
from serving.settings.settings import Settings

SCRATCH = ".build-"
# A folder that a killed build left behind is removed when it is older than this.
STALE_SECONDS = 86400


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder in `parent` that Triton and this project's tools ignore. On exit, remove
    the folder if it still exists (`publish` renames it), and also remove `parent` if it was created
    here and is empty.

    Folders that killed builds left behind are removed when they are more than a day old.
    """
    is_parent_new = not parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    for leftover in parent.glob(f"{SCRATCH}*"):
        age = time.time() - leftover.stat().st_mtime
        if age > STALE_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=parent))
    folder.chmod(0o755)  # mkdtemp's 0o700 would hide the published model from other users
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if is_parent_new:
            with contextlib.suppress(OSError):  # it is not empty
                parent.rmdir()


def check(folder: Path, name: str) -> None:
    """Look for mistakes in the folder of the model `name` as `serve --check` does before it loads
    models. If there are any, raise BuildError with the first one."""
    for _, mistake in check_models(Settings.from_env({}), {name: folder}):
        raise BuildError(f"the model would not be served: {mistake}")


def installed_backends() -> set[str]:
    """Return the names of tritonserver's backends. Raise FileNotFoundError if tritonserver is not
    installed."""
    binary()  # raises FileNotFoundError
    return {path.name for path in backend_directory().iterdir()}


def try_in_tritonserver(
    folder: Path, request: Request, find_backends: Callable[[], set[str]] = installed_backends
) -> None:
    """Load the finished folder into a tritonserver, and test it with its example. Raise BuildError
    if the model would not be served. If tritonserver or a backend that the model needs is missing,
    only print that. If the model is for a GPU and was tested without one, print that too."""
    settings = Settings.from_env({})
    target = request.model_folder
    repository = target.parent  # contains the models that an ensemble calls
    try:
        backends = find_backends()
    except FileNotFoundError as err:
        print(f"not loaded: {err}", flush=True)
        return
    config = read_config(folder, settings.device)
    parts = configs_of_parts(config, lambda name: read_config(repository / name, settings.device))
    needed = {backend_of(config), *map(backend_of, parts.values())}
    missing = needed - backends - {ENSEMBLE}
    if missing:
        print(f"not loaded: the tritonserver here has no backend '{min(missing)}'", flush=True)
        return
    folders = {target.name: folder} | {name: repository / name for name in parts}
    for _, reason in failures_in_tritonserver(settings, folders, [target.name]):
        message = " ".join(with_sources(reason, {folder: target}).split())
        newest = re.search(r"max supported IR version: (\d+)", message)
        if newest:
            message += f"; set the ONNX model's ir_version to {newest[1]} and save it again"
        raise BuildError(f"the model would not be served: {message} (--no-load skips this test)")
    if request.target in ON_A_GPU and settings.device == "cpu":
        print("loaded with its CPU configuration, because this machine has no GPU", flush=True)


def add_users_files(folder: Path, target: Path) -> None:
    """Hard-link the files that a user added to `target`, such as another version or a client.py,
    into the new folder, unless it has a file of that name."""
    built = {RECORD, *read_record(target).get("files", ())}
    for path in target.rglob("*"):
        name = path.relative_to(target)
        link = folder / name
        if path.is_file() and str(name) not in built and not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, link)


def publish(folder: Path, target: Path) -> None:
    """Move the complete folder to `target`, replacing any folder that is there. If the process is
    killed between the two renames, there is no `target`; the old folder is left in the same parent
    folder as `.old-NAME-PID`."""
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


def keep_reference(folder: Path, source_sha256: str) -> None:
    """Copy the folder's version 1, which is still in fp32 and has the digest `source_sha256`, into
    the cache, unless it is there already."""
    target = reference_folder(source_sha256)
    if not target.is_dir():
        with scratch_folder(target.parent) as scratch:
            shutil.copytree(folder / "1", scratch, dirs_exist_ok=True)
            publish(scratch, target)
