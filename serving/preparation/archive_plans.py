"""TensorRT plans in archives: one that does not fit is served from its ONNX file, or refused with the reason.

A load is no time to build: the platform waits for a minute.
"""

import logging
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from serving.errors import LoadFailed
from serving.preparation.rebuild import fallback
from serving.repository.archives import Archive, replace_config
from serving.repository.plans import OFF, Abilities, Step, abilities, decide, plan_model
from serving.settings.table import Settings

log = logging.getLogger(__name__)
OBSTACLE = "plans are not built when an archive is loaded; build it on this kind of GPU (docs/tensorrt.md)"


class ArchivePlans:
    """Safe to share between threads; asks for the GPU at the first archive with a plan."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def _here(self) -> Abilities:
        return replace(abilities(self.settings), obstacle=OBSTACLE)

    def fit(self, archive: Archive, staged: Path) -> None:
        """Changes what is staged of the archive for Triton; raises LoadFailed."""
        for part in archive.parts if self.settings.tensorrt != OFF else ():
            self._fit(part, staged / part.name)

    def _fit(self, folder: Path, staged: Path) -> None:
        model = plan_model(folder, self.settings.device)
        if model is None:
            return
        found = model.versions()
        decision = decide(found, self._here, self.settings.tensorrt)
        if decision.reason and decision.step != Step.ONNX:
            raise LoadFailed(f"the TensorRT plan of '{folder.name}' cannot be served: {decision.reason}")
        if decision.step == Step.ONNX:
            log.warning(model.told(decision))
            replace_config(staged, fallback(model, found, self.settings, self._here.gpu))
