"""One build from beginning to end: in a folder beside the model's, renamed when it is complete.

    weights -> draft (fp32) -> engine -> config.pbtxt, configs/cpu.pbtxt, build.json -> checked -> REPOSITORY/NAME

What is interrupted or fails leaves the repository as it was.
"""

import contextlib
import importlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from build_engines import own, weights
from build_engines.config import Serving, model_config, render
from build_engines.downloads import cache_folder, digest
from build_engines.draft import ONNX, BuildError, Draft, Engine, UsageError
from build_engines.recipes import ENSEMBLES, RECIPES, Request
from serving.preparation.check import check_files
from serving.settings.table import Settings

RECORD = "build.json"
SCRATCH, STALE = ".build-", 86400  # seconds
MODULES = {"resnet": "build_engines.resnet", "yolov5": "build_engines.yolov5", "bert": "build_engines.bert"}
ENGINES = {
    "cpu": "build_engines.cpu",
    "tensorrt": "build_engines.tensorrt",
}  # modules with build(draft, folder, request)


def build(request: Request, force: bool = False) -> tuple[Path, bool]:
    """The model's folder, and whether it had to be made; BuildError."""
    if request.model in ENSEMBLES:
        return build_ensemble(request, force)
    path = weights.find(request)
    made_from = _made_from(request, path)
    if not force and (there := _up_to_date(request, made_from)):
        return there, False
    with scratch_folder(request.repository) as folder:
        draft = make_draft(request, path, folder)
        source = digest(folder / "1" / _file(draft))
        engine = _make_engine(request, draft, folder)
        write_configs(folder, draft, engine, request.serving)
        _record(folder, made_from, source, engine)
        check(folder)
        target = request.repository / (request.name or _usual_name(request, engine))
        _keep_own_files(folder, target)
        publish(folder, target)
    return target, True


def build_ensemble(request: Request, force: bool) -> tuple[Path, bool]:
    """As build, of several folders: what it calls has folders of its own."""
    folder, made = importlib.import_module(RECIPES[request.model].module).build(request, force)
    return Path(folder), bool(made)


def make_draft(request: Request, path: Path | None, folder: Path) -> Draft:
    """Fills the folder with the fp32 model and what belongs to it."""
    (folder / "1").mkdir(parents=True, exist_ok=True)
    kind = weights.kind(path) if path else ""
    if path and kind == "onnx":
        draft = own.onnx_draft(request, path, folder)
    elif path and kind == "torchscript":
        draft = own.torchscript_draft(request, path, folder)
    else:
        draft = _family(request, path, kind).draft(request, path, folder)
    return replace(draft, settings={**draft.settings, **request.settings})


def _family(request: Request, path: Path | None, kind: str) -> Any:
    """The module that reads these weights: the recipe's, the flag's, or the one that config.json names."""
    if request.recipe:
        return _module(request.recipe.module)
    name = own.client_of(request)
    if not name and kind == "checkpoint" and path:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        name = str(config.get("model_type", ""))
    if name not in MODULES:
        raise UsageError(
            f"it is not known what {path} is ({name or 'no client is named'}): add --client, one of "
            f"{', '.join(MODULES)}, or bring it as an ONNX file, of which any is taken"
        )
    return _module(MODULES[name])


def _module(name: str) -> Any:
    """BuildError names the package that it needs."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as err:
        raise BuildError(f"this needs the package '{err.name}', which is not installed: make dev installs it") from err


def _make_engine(request: Request, draft: Draft, folder: Path) -> Engine:
    """What the target's builder makes of it; the fp32 model is kept in the cache, for `verify`."""
    if draft.platform == ONNX and request.precision != "fp32":
        _keep_reference(folder)
    engine: Engine = _module(ENGINES[request.target]).build(draft, folder, request)
    return engine


def reference_folder(source: str) -> Path:
    """Where the fp32 model with that SHA-256 is kept."""
    return cache_folder() / "references" / source


def _keep_reference(folder: Path) -> None:
    target = reference_folder(digest(folder / "1" / "model.onnx"))
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(target.parent) as scratch:
            shutil.copytree(folder / "1", scratch, dirs_exist_ok=True)
            publish(scratch, target)


def write_configs(folder: Path, draft: Draft, engine: Engine, serving: Serving) -> None:
    """config.pbtxt for a GPU and configs/cpu.pbtxt for a machine without; an engine for a CPU has the first only."""
    if not serving.preferred_batch_sizes:
        serving = replace(serving, preferred_batch_sizes=engine.preferred_batch_sizes)
    cpu = model_config(draft, draft.platform, "KIND_CPU", draft.cpu_instances, serving)
    if engine.cpu_only:
        (folder / "config.pbtxt").write_text(render(cpu, draft.note))
        return
    gpu = model_config(draft, engine.platform, "KIND_GPU", 1, serving)
    (folder / "config.pbtxt").write_text(render(gpu, draft.note))
    (folder / "configs").mkdir()
    (folder / "configs" / "cpu.pbtxt").write_text(render(cpu, draft.note))


def _file(draft: Draft) -> str:
    return "model.onnx" if draft.platform == ONNX else "model.pt"


def _usual_name(request: Request, engine: Engine) -> str:
    """The model's, with the precision behind it where a CPU's engine is not fp32: both can be served side by side."""
    return f"{request.model}_{engine.precision}" if engine.cpu_only and engine.precision != "fp32" else request.model


def _made_from(request: Request, path: Path | None) -> dict[str, Any]:
    """All that decides what a build makes, without the places on this machine."""
    asked = asdict(request)
    for place in ("repository", "name", "calibration", "labels"):
        asked.pop(place)
    asked["weights"] = request.source if path is None or not path.exists() or _is_hub(request) else path.name
    files = {"weights": path, "labels": request.labels}
    asked["sha256"] = {name: weights.identity(file) for name, file in files.items() if file and file.exists()}
    asked["calibration"] = request.calibration.name if request.calibration else ""
    if bound_to := importlib.import_module(ENGINES[request.target]).bound_to():
        asked["bound_to"] = bound_to
    return json.loads(json.dumps(asked))  # type: ignore[no-any-return]  # tuples as lists, as they are read back


def _is_hub(request: Request) -> bool:
    return bool(weights.HUB_ID.fullmatch(request.source)) and not Path(request.source).exists()


def _up_to_date(request: Request, made_from: Mapping[str, Any]) -> Path | None:
    """The folder that this build would make again; its files are as they were made."""
    names = [request.name] if request.name else [request.model, *(f"{request.model}_{p}" for p in ("int8", "fp16"))]
    for folder in (request.repository / name for name in names):
        record = read_record(folder)
        if record and record["made_from"] == made_from and damaged(folder, record) == []:
            return folder
    return None


def read_record(folder: Path) -> dict[str, Any]:
    """build.json; empty where there is none."""
    try:
        return dict(json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def damaged(folder: Path, record: Mapping[str, Any]) -> list[str]:
    """The files that are missing or are not as they were made."""
    files = record["files"].items()
    return [name for name, sha in files if not (folder / name).is_file() or digest(folder / name) != sha]


def _record(folder: Path, made_from: Mapping[str, Any], source: str, engine: Engine) -> None:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    record = {
        "made_from": made_from,
        "source_sha256": source,
        "precision": engine.precision,
        "platform": engine.platform,
        "engine": dict(engine.facts),
        "files": {name: digest(folder / name) for name in names},
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _keep_own_files(folder: Path, target: Path) -> None:
    """What a user laid into the model's folder stays there: another version, a client.py."""
    made = {RECORD, *read_record(target).get("files", ())}
    for path in target.rglob("*"):
        name = path.relative_to(target)
        if path.is_file() and str(name) not in made and not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(path, folder / name)


def check(folder: Path) -> None:
    """What `serve --check` would say of the folder; BuildError with the first finding."""
    for finding in check_files(Settings.from_env({}), {folder.name: folder}):
        raise BuildError(
            f"the model would not be served: {finding.file}: {' '.join(finding.what.split())}; {finding.remedy}"
        )


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, whose name Triton and the tools pass over; gone at the end, whatever happens, and with
    it `parent`, if that is new too and nothing else is in it.

    What a build that was killed outright has left there goes after a day.
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
