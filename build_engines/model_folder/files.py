"""The files of a model folder: labels.txt, build.json, the scratch folder that becomes it, the kept fp32 model."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError, UsageError
from build_engines.model_folder.spec import Engine
from serving.host.tritonserver import backend_directory, binary
from serving.preparation.check import check_models
from serving.preparation.trial_start import failures
from serving.repository.model_config import ENSEMBLE, backend_of, configs_of_parts, read_config
from serving.settings.table import Settings

RECORD = "build.json"  # what a folder was made from, and its files as they were made
SCRATCH, STALE = ".build-", 86400  # seconds


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """Return $BUILD_ENGINES_CACHE, else triton-multi-model in the user's cache folder."""
    if folder := os.environ.get("BUILD_ENGINES_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triton-multi-model"


def read_lines(file: Path) -> list[str]:
    """The lines that are not empty; OSError or UnicodeDecodeError when it is no text file."""
    return [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def write_labels(target: Path, labels: Sequence[str], file: Path | None) -> bool:
    """Writes the labels of `file`, else `labels`; whether there are any. UsageError when the file cannot be read."""
    if file:
        try:
            labels = read_lines(file)
        except (OSError, UnicodeDecodeError) as err:
            raise UsageError(f"--labels {file}: {err}") from err
    if labels:
        target.write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    return bool(labels)


def read_record(folder: Path) -> dict[str, Any]:
    """build.json; empty where there is none."""
    try:
        return dict(json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def save_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Writes build.json."""
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def write_record(folder: Path, made_from: Mapping[str, Any], source: str, engine: Engine) -> None:
    """Records the finished folder; `source` is the SHA-256 of the fp32 model."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    save_record(
        folder,
        {
            "made_from": made_from,
            "source_sha256": source,
            "precision": engine.precision,
            "platform": engine.platform,
            "engine": dict(engine.facts),
            "files": {name: digest(folder / name) for name in names},
        },
    )


def changed_files(folder: Path, record: Mapping[str, Any]) -> list[str]:
    """The files that are missing or are not as they were made."""
    files = record["files"].items()
    return [name for name, sha in files if not (folder / name).is_file() or digest(folder / name) != sha]


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


def check(folder: Path, name: str) -> None:
    """Check the folder of the model `name` as `serve --check` does. Raise BuildError with the first finding."""
    for finding in check_models(Settings.from_env({}), {name: folder}):
        raise BuildError(f"the model would not be served: {finding.removeprefix(f'{name}: ')}")


def load(folder: Path, target: Path) -> None:
    """Load the finished folder, which is to become `target`, into a tritonserver, and ask its example. Raise BuildError
    if it would not be served. Print why it was not loaded."""
    settings, others = Settings.from_env({}), target.parent
    try:
        backends = {path.name for path in backend_directory().iterdir()}
        binary()
    except FileNotFoundError as err:
        print(f"not loaded: {err}", flush=True)
        return
    config = read_config(folder, settings.device)
    parts = configs_of_parts(config, lambda name: read_config(others / name, settings.device))
    needed = {backend_of(each) for each in (config, *parts.values())} - {ENSEMBLE}
    if missing := needed - backends:
        print(f"not loaded: the tritonserver here has no backend '{min(missing)}'", flush=True)
        return
    folders = {target.name: folder} | {name: others / name for name in parts}
    for _, reason in failures(settings, folders, [target.name]):
        reason = " ".join(reason.replace(str(folder), str(target)).split())
        raise BuildError(f"the model would not be served: {reason} (--no-load builds it unseen)")


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


def reference_folder(source: str) -> Path:
    """Where the fp32 model with that SHA-256 is kept."""
    return cache_folder() / "references" / source


def keep_reference(folder: Path) -> None:
    """Copies the folder's version 1, which is still in fp32."""
    target = reference_folder(digest(folder / "1" / "model.onnx"))
    if not target.is_dir():
        with scratch_folder(target.parent) as scratch:
            shutil.copytree(folder / "1", scratch, dirs_exist_ok=True)
            publish(scratch, target)
