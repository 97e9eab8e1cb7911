"""Archives whose configurations leave out what the model's backend can say.

To complete them Triton starts each Python-based model twice and waits a second for the first process to end, whether
anything is missing or not: a load takes 1.4 s instead of 0.15 s. So Triton is told to leave configurations as they are
where all its backends are Python-based (others complete more than what is missing), and an archive's is completed
here, by the backend's or the model's own `auto_complete_config` (serving.preparation.complete_config).
"""

import os
import subprocess
import sys
from pathlib import Path

from google.protobuf import text_format

from serving.errors import LoadFailed
from serving.host.tritonserver import only_python_backends
from serving.repository.archives import Archive, replace_config
from serving.repository.layout import config_file
from serving.repository.model_config import ENSEMBLE, backend_of, is_complete, read_config
from serving.settings.table import Settings

HERE = Path(__file__).resolve().parents[2]


class Completion:
    """Completes what archives leave out, before Triton sees them."""

    def __init__(self, settings: Settings, backends: Path) -> None:
        self.settings, self.backends = settings, backends
        self.ours = only_python_backends(backends)

    def fit(self, archive: Archive, staged: Path) -> None:
        """Changes what is staged of the archive for Triton; raises LoadFailed."""
        for model in [staged / part.name for part in archive.parts]:
            config = read_config(model, self.settings.device)
            if backend_of(config) == ENSEMBLE and not config.platform:  # Triton 24.10 loads none without
                config.platform = ENSEMBLE
                replace_config(model, text_format.MessageToString(config, as_utf8=True))
            elif self.ours and not is_complete(model, config):
                replace_config(model, self._completed(model))

    def _completed(self, model: Path) -> str:
        module, file = "serving.preparation.complete_config", config_file(model, self.settings.device)
        command = [sys.executable, "-m", module, str(model), str(file), str(self.backends)]
        seconds = self.settings.load_timeout
        environ = os.environ | {"PYTHONPATH": str(HERE)}
        try:
            done = subprocess.run(command, cwd=HERE, env=environ, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired as err:
            raise LoadFailed(
                f"the configuration of '{model.name}' is not complete, and completing it took more than {seconds:g} s"
            ) from err
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise LoadFailed(f"the configuration of '{model.name}' is not complete, and cannot be completed: {reason}")
        return done.stdout
