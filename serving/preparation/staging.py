"""Change an archive before Triton loads it: choose the engine, and add what its configurations leave out.

To complete configurations Triton starts each Python-based model twice and waits a second for the first process to end,
whether anything is missing or not: a load takes 1.4 s instead of 0.15 s. So Triton is told to leave configurations as
they are where all its backends are Python-based (others complete more than what is missing), and an archive's is
completed here, by the backend's or the model's own `auto_complete_config` (complete_config.py).
"""

import logging
import os
import subprocess
import sys
from pathlib import Path

from serving.errors import LoadFailed
from serving.host.tritonserver import only_python_backends
from serving.repository.archives import Archive
from serving.repository.engines import Engines
from serving.repository.layout import config_file
from serving.repository.links import replace_config
from serving.repository.model_config import ENSEMBLE, backend_of, is_complete, read_config, written
from serving.settings.table import Settings

log = logging.getLogger(__name__)
HERE = Path(__file__).resolve().parents[2]


class Staging:
    """Safe to share between threads."""

    def __init__(self, settings: Settings, backends: Path) -> None:
        self.settings, self.backends = settings, backends
        self._engines = Engines(settings, backends)
        self._completes = only_python_backends(backends)

    def fit(self, archive: Archive, staged: Path) -> None:
        """Changes what is staged of the archive for Triton; raises LoadFailed."""
        for part in archive.parts:
            self._arrange(staged / part.name)
            self.complete(staged / part.name)

    def _arrange(self, model: Path) -> None:
        """With the configuration and the engine for this machine."""
        config, choice = self._engines.made(model)
        if config is not None:
            replace_config(model, written(config))
        if choice:
            log.log(logging.WARNING if choice.refused else logging.INFO, "%s: %s", model.name, choice)

    def complete(self, model: Path) -> None:
        """The configuration of one that is staged; raises LoadFailed."""
        config = read_config(model, self.settings.device)
        if backend_of(config) == ENSEMBLE and not config.platform:  # Triton 24.10 loads none without
            config.platform = ENSEMBLE
            replace_config(model, written(config))
        elif self._completes and not is_complete(model, config):
            replace_config(model, self._completed(model))

    def _completed(self, model: Path) -> str:
        module, file = "serving.preparation.complete_config", config_file(model, self.settings.device)
        command = [sys.executable, "-m", module, str(model), str(file), str(self.backends)]
        seconds, environ = self.settings.load_timeout, os.environ | {"PYTHONPATH": str(HERE)}
        failed = f"the configuration of '{model.name}' is not complete, and"
        try:
            done = subprocess.run(command, cwd=HERE, env=environ, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired as err:
            raise LoadFailed(f"{failed} completing it took more than {seconds:g} s") from err
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
            raise LoadFailed(f"{failed} cannot be completed: {reason}")
        return done.stdout
