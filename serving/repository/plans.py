"""TensorRT plans in the model repositories: which do not fit this machine, and what is done with each model then.

    fits ------------------------------------------------------------> SERVE it as it lies
    does not, no ONNX file beside it, or SERVE_TENSORRT=off ----------> SERVE it as it lies, and Triton says what it is
    does not, trtexec is here, SERVE_TENSORRT is auto or rebuild -----> BUILD it (serving/preparation/rebuild.py)
    does not, otherwise ----------------------------------------------> ONNX Runtime serves the ONNX file
    does not, SERVE_TENSORRT=rebuild, and it cannot be built ---------> FAIL: the start ends with the reason

fingerprint.py says what does not fit.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from serving.repository.fingerprint import Fingerprint, Hardware, find_trtexec, read, source_sha256, this_hardware
from serving.repository.layout import folders_in, versions
from serving.repository.model_config import TENSORRT, backend_of, read_config
from serving.settings.table import Settings

AUTO, REBUILD, OFF = "auto", "rebuild", "off"  # of SERVE_TENSORRT; the others name a provider of ONNX Runtime
PLAN, ONNX = "model.plan", "model.onnx"


class Step(StrEnum):
    SERVE = "serve"
    BUILD = "build"
    ONNX = "onnx"
    FAIL = "fail"


@dataclass(frozen=True)
class Version:
    """One version of a model, as it lies there. `source` is the SHA-256 of the ONNX file, "" where there is none."""

    number: str
    has_plan: bool
    source: str
    fingerprint: Fingerprint | None


@dataclass(frozen=True)
class Abilities:
    """`gpu` says whether plans can run at all, `hardware` what they must be built for (None: it cannot be told),
    `obstacle` why none can be built ("": they can)."""

    gpu: bool
    hardware: Hardware | None
    obstacle: str = ""


@dataclass(frozen=True)
class Decision:
    """`reason` is why the plan is not simply served; "" when it is."""

    step: Step
    reason: str = ""


def decide(found: Sequence[Version], here: Abilities, setting: str) -> Decision:
    """What is done with a model that has these versions."""
    problems = [(version, problem) for version in found if (problem := mismatch(version, here))]
    if not problems or setting == OFF:
        return Decision(Step.SERVE)
    reason = "; ".join(f"version {version.number}: {problem}" for version, problem in problems)
    if not all(version.source for version in found):
        return Decision(Step.SERVE, f"{reason}; there is no {ONNX} beside it to build it from")
    if setting not in (AUTO, REBUILD) or not here.gpu:
        return Decision(Step.ONNX, reason)
    if here.hardware and not here.obstacle:
        return Decision(Step.BUILD, reason)
    why = here.obstacle if here.hardware else "nvidia-smi does not say which GPU this is"
    return after_failure(Decision(Step.BUILD, reason), setting, why)


def after_failure(decision: Decision, setting: str, why: str) -> Decision:
    """What is done instead when a plan could not be built."""
    reason = f"{decision.reason}; it cannot be built here: {why}"
    return Decision(Step.FAIL if setting == REBUILD else Step.ONNX, reason)


def mismatch(version: Version, here: Abilities) -> str:
    """Why this version's plan cannot be served; "" when it can, as far as is known."""
    if not here.gpu:
        return "a TensorRT plan needs a GPU"
    if not version.has_plan:
        return "it has no plan"
    if here.hardware is None or (version.fingerprint is None and not version.source):
        return ""
    if version.fingerprint is None:
        return "it has no fingerprint.json, so that nobody knows what its plan was built for"
    built = version.fingerprint
    return "; ".join(built.differences(here.hardware, version.source))


@dataclass(frozen=True)
class PlanModel:
    """A model folder whose configuration, a ModelConfig, asks for TensorRT, and the versions that are loaded."""

    folder: Path
    config: Any
    loaded: tuple[Path, ...]

    @property
    def plan(self) -> str:
        """The file's name in each version."""
        return str(self.config.default_model_filename or PLAN)

    @property
    def onnx(self) -> str:
        return str(Path(self.plan).with_suffix(".onnx"))

    def told(self, decision: Decision) -> str:
        """What the log says of it; "" where there is nothing to say."""
        outcome = {
            Step.SERVE: "it is served as it lies",
            Step.BUILD: f"it is built again from {self.onnx}, which takes minutes",
            Step.ONNX: f"ONNX Runtime serves {self.onnx} instead",
            Step.FAIL: "SERVE_TENSORRT=rebuild ends the start",
        }[decision.step]
        return f"{self.folder.name}: {decision.reason}; {outcome}" if decision.reason else ""

    def versions(self) -> tuple[Version, ...]:
        return tuple(
            Version(path.name, (path / self.plan).is_file(), source_sha256(path / self.onnx), read(path))
            for path in self.loaded
        )


def plan_models(settings: Settings, repository: Path) -> list[PlanModel]:
    """Those of this repository that are loaded, by name; raises Unreadable."""
    folders = folders_in(repository)
    wanted = [path for path in folders if not settings.load_models or path.name in settings.load_models]
    return [model for path in wanted if (model := plan_model(path, settings.device))]


def plan_model(folder: Path, device: str) -> PlanModel | None:
    """None for a model of another backend, and for one that names its plan by compute capability itself; raises
    Unreadable."""
    config, there = read_config(folder, device), versions(folder)
    if backend_of(config) != TENSORRT or config.cc_model_filenames or not there:
        return None
    # Without a version_policy Triton loads the latest; with one, all are looked at.
    loaded = there if config.HasField("version_policy") else there[-1:]
    return PlanModel(folder, config, tuple(loaded))


def repositories_with_plans(settings: Settings) -> tuple[int, ...]:
    """Which of the model repositories hold plans that preparation/rebuild.py must look at; raises Unreadable."""
    if settings.tensorrt == OFF or settings.multi_model:
        return ()
    return tuple(n for n, folder in enumerate(settings.model_repositories) if plan_models(settings, folder))


def abilities(settings: Settings) -> Abilities:
    """Of this machine."""
    if settings.device != "gpu":
        return Abilities(gpu=False, hardware=None)
    hardware, obstacle = this_hardware(), "" if find_trtexec(os.environ) else "there is no trtexec"
    if hardware and not hardware.tensorrt:
        obstacle = "no libnvinfer.so.X.Y.Z was found, so which TensorRT Triton has is not known"
    return Abilities(True, hardware, obstacle)
