"""Runs before tritonserver where a model repository holds TensorRT plans, and becomes it:

    python -m serving.preparation.rebuild tritonserver --model-repository=… …

It looks at each plan (repository/plans.py), builds those that do not fit into a cache, and lays out what Triton and the
clients read: a link to the repository where all plans fit, else a folder of links with another plan or config.pbtxt.
Meanwhile /ping says what it does. A process of its own: PID 1 goes on watching, a signal ends it and trtexec at once.
"""

import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from serving.errors import LoadFailed
from serving.host.files import replace_file
from serving.preparation import trtexec
from serving.preparation.overlay import Change, show
from serving.preparation.plan_config import build_by_config, onnx_config
from serving.preparation.trtexec import TrtexecError
from serving.repository.fingerprint import Build, Fingerprint, Hardware, find_trtexec
from serving.repository.layout import overlay
from serving.repository.plans import (
    AUTO,
    Abilities,
    Decision,
    PlanModel,
    Step,
    Version,
    abilities,
    after_failure,
    decide,
    mismatch,
    plan_models,
    repositories_with_plans,
)
from serving.settings.table import Settings

SHARE = 0.75  # of SERVE_START_TIMEOUT, for all builds; what is left is for loading the models
Maker = Callable[[Fingerprint, Path, Path, Path, Callable[[str], None], float], None]


def make_plan(
    wanted: Fingerprint, onnx: Path, plan: Path, cache: Path, say: Callable[[str], None], seconds: float
) -> None:
    """With trtexec; raises TrtexecError. `cache` keeps its timing cache."""
    program = trtexec.inspect(find_trtexec(os.environ))
    if wanted.hardware.tensorrt not in ("", program.version):
        raise TrtexecError(f"trtexec is of TensorRT {program.version}, and Triton has {wanted.hardware.tensorrt}")
    trtexec.build(program, wanted, onnx, plan, trtexec.timing_file(cache, wanted.hardware), say, seconds)


class Rebuilder:
    """Decides and builds, one model after the other. `say` writes to the log, `tell` sets what /ping says."""

    def __init__(
        self,
        settings: Settings,
        here: Abilities,
        say: Callable[[str], None],
        tell: Callable[[str], None],
        make: Maker = make_plan,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.here = settings, here
        self._say, self._tell, self._make, self._clock = say, tell, make, clock
        bounded = settings.tensorrt == AUTO
        self._deadline = clock() + SHARE * settings.start_timeout if bounded else math.inf

    def change(self, model: PlanModel) -> Change | None:
        """None where the folder is served as it lies; raises LoadFailed."""
        found = model.versions()
        decision = decide(found, self.here, self.settings.tensorrt)
        if decision.step == Step.BUILD and self.here.hardware:
            try:
                return Change(model, plans=self._plans(model, found, self.here.hardware, decision))
            except (TrtexecError, OSError) as err:
                decision = after_failure(decision, self.settings.tensorrt, str(err))
        return self._without_build(model, found, decision)

    def _without_build(self, model: PlanModel, found: tuple[Version, ...], decision: Decision) -> Change | None:
        if decision.step == Step.FAIL:
            raise LoadFailed(f"the TensorRT model '{model.folder.name}' cannot be served: {decision.reason}")
        if decision.reason:
            self._say(f"WARNING: {model.told(decision)}")
        if decision.step == Step.SERVE:
            return None
        return Change(model, config=fallback(model, found, self.settings, self.here.gpu))

    def _plans(
        self, model: PlanModel, found: tuple[Version, ...], hardware: Hardware, decision: Decision
    ) -> dict[str, Path]:
        self._say(f"{model.folder.name}: {decision.reason}")
        return {
            version.number: self._cached(model, version, hardware) for version in found if mismatch(version, self.here)
        }

    def _cached(self, model: PlanModel, version: Version, hardware: Hardware) -> Path:
        """The folder of a plan that fits, in the cache."""
        wanted = Fingerprint(hardware, _build(model, version))
        cache = own_folder(self.settings.engine_cache)
        target = cache / wanted.key()
        if (target / model.plan).is_file():
            self._say(f"{model.folder.name}: taking the plan that was built before, {target}")
            return target
        with tempfile.TemporaryDirectory(prefix=".new-", dir=cache) as folder:
            made = Path(folder) / "plan"
            made.mkdir()
            self._timed(model, version, wanted, made / model.plan)
            shutil.rmtree(target, ignore_errors=True)
            made.rename(target)
        return target

    def _timed(self, model: PlanModel, version: Version, wanted: Fingerprint, plan: Path) -> None:
        name, started = model.folder.name, self._clock()
        if (left := self._deadline - started) <= 0:
            raise TrtexecError("SERVE_START_TIMEOUT leaves no time for it")
        what = f"building the TensorRT plan of '{name}' ({wanted.build.precision}) for {wanted.hardware}"
        self._say(f"{what}, which takes minutes")
        self._tell(what)

        def progress(line: str) -> None:
            self._tell(f"{what}, {self._clock() - started:.0f} s so far" + (f": {line}" if line else ""))

        onnx = model.folder / version.number / model.onnx
        self._make(wanted, onnx, plan, self.settings.engine_cache, progress, left)
        self._say(f"{name}: built in {self._clock() - started:.0f} s")


def _build(model: PlanModel, version: Version) -> Build:
    """As the plan was built before; by config.pbtxt where that is not known."""
    if version.fingerprint:
        return replace(version.fingerprint.build, source_sha256=version.source)
    return build_by_config(model.config, version.source)


def fallback(model: PlanModel, found: tuple[Version, ...], settings: Settings, gpu: bool) -> str:
    """The configuration with which ONNX Runtime serves the model."""
    known = [version.fingerprint for version in found if version.fingerprint]
    build = known[-1].build if known else None
    return onnx_config(
        model.config, onnx=model.onnx, setting=settings.tensorrt, gpu=gpu, build=build, cache=settings.engine_cache
    )


def own_folder(folder: Path) -> Path:
    """Makes it; a plan is code, so a folder that others may write to is refused (OSError)."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"SERVE_ENGINE_CACHE={folder} can be written to by others: name a folder of your own")
    return folder


def prepare(settings: Settings, rebuilder: Rebuilder) -> None:
    """Every repository that holds plans; raises LoadFailed."""
    for number in repositories_with_plans(settings):
        repository = settings.model_repositories[number]
        found = (rebuilder.change(model) for model in plan_models(settings, repository))
        show(overlay(settings.run_dir, number), repository, {each.model.folder.name: each for each in found if each})


def main(command: list[str]) -> int:
    """Does not return when all is well: the process becomes the command."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    code = prepared(Settings.from_env(os.environ))
    if code == 0:
        os.execv(command[0], command)
    return code


def prepared(settings: Settings) -> int:
    """0, or EX_CONFIG: another try would not help."""
    stage = settings.stage_file
    stage.unlink(missing_ok=True)  # of one that was killed
    try:
        prepare(settings, Rebuilder(settings, abilities(settings), _say, partial(_write_stage, stage)))
    except LoadFailed as err:
        _say(f"error: {err}")
        return os.EX_CONFIG
    finally:
        stage.unlink(missing_ok=True)
    return 0


def _write_stage(stage: Path, text: str) -> None:
    replace_file(stage, text.encode())


def _say(line: str) -> None:
    sys.stdout.write(" ".join(line.split()) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
