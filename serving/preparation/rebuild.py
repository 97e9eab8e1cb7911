"""Runs before tritonserver where a model repository holds TensorRT plans, and becomes it:

    python -m serving.preparation.rebuild tritonserver --model-repository=… …

It looks at each plan (repository/plans.py), builds those that do not fit into a cache, and makes what Triton and the
clients read: a folder of links to the repository, some with another plan or config.pbtxt. Meanwhile /ping says what it
does. It is a process of its own, so that PID 1 goes on watching, and a signal ends it and trtexec at once.
"""

import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from serving.errors import LoadFailed
from serving.host.files import replace_file
from serving.preparation import trtexec
from serving.preparation.plan_config import onnx_config, wanted_build
from serving.preparation.trtexec import TrtexecError
from serving.repository.fingerprint import Fingerprint, Hardware, find_trtexec
from serving.repository.layout import folders_in, overlay
from serving.repository.links import link_entries, replace_config, replace_plan
from serving.repository.plans import (
    AUTO,
    Abilities,
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

    def fit(self, model: PlanModel, shown: Path) -> None:
        """Changes the folder of links `shown` for what is done with the model; raises LoadFailed."""
        found = model.versions()
        decision = decide(found, self.here, self.settings.tensorrt)
        if decision.step == Step.BUILD and self.here.hardware:
            self._say(f"{model.folder.name}: {decision.reason}")
            try:
                for version in [version for version in found if mismatch(version, self.here)]:
                    built = self._cached(model, version, self.here.hardware)
                    replace_plan(shown, model.folder / version.number, model.plan, built)
                return
            except (TrtexecError, OSError) as err:
                decision = after_failure(decision, self.settings.tensorrt, str(err))
        if decision.step == Step.FAIL:
            raise LoadFailed(f"the TensorRT model '{model.folder.name}' cannot be served: {decision.reason}")
        if decision.reason:
            self._say(f"WARNING: {model.told(decision)}")
        if decision.step == Step.ONNX:
            replace_config(shown, onnx_config(model, found, self.settings))

    def _cached(self, model: PlanModel, version: Version, hardware: Hardware) -> Path:
        """The folder of a plan that fits, in the cache."""
        wanted = Fingerprint(hardware, wanted_build(model.config, version))
        target = own_folder(self.settings.engine_cache) / wanted.key()
        if (target / model.plan).is_file():
            self._say(f"{model.folder.name}: taking the plan that was built before, {target}")
        else:
            target.mkdir(exist_ok=True)
            self._timed(model, version, wanted, target / model.plan)
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


def own_folder(folder: Path) -> Path:
    """Makes it; a plan is code, so a folder that others may write to is refused (OSError)."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"SERVE_ENGINE_CACHE={folder} can be written to by others: name a folder of your own")
    return folder


def prepare(settings: Settings, rebuilder: Rebuilder) -> None:
    """Shows every repository that holds plans; raises LoadFailed."""
    for number in repositories_with_plans(settings):
        repository, target = settings.model_repositories[number], overlay(settings.run_dir, number)
        target.parent.mkdir(parents=True, exist_ok=True)
        shown = Path(tempfile.mkdtemp(prefix=f"{number}-", dir=target.parent))
        for folder in folders_in(repository):
            link_entries(folder, shown / folder.name)
        for model in plan_models(settings, repository):
            rebuilder.fit(model, shown / model.folder.name)
        link = target.with_suffix(".new")  # a second start of tritonserver replaces what clients may read
        link.symlink_to(shown)
        link.replace(target)


def main(command: list[str]) -> NoReturn:
    """Becomes the command when all is well; else exits with EX_CONFIG, as another try would not help."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    settings = Settings.from_env(os.environ)
    stage = settings.stage_file
    stage.unlink(missing_ok=True)  # of one that was killed
    try:
        rebuilder = Rebuilder(settings, abilities(settings), _say, lambda text: replace_file(stage, text.encode()))
        prepare(settings, rebuilder)
    except LoadFailed as err:
        _say(f"error: {err}")
        sys.exit(os.EX_CONFIG)
    finally:
        stage.unlink(missing_ok=True)
    os.execv(command[0], command)


def _say(line: str) -> None:
    sys.stdout.write(" ".join(line.split()) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
