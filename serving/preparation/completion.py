"""Configurations that leave out what a model's backend can say.

To complete them Triton starts each Python-based model twice and waits a second for the first process to end, whether
anything is missing or not: a load takes 1.4 s instead of 0.15 s. So where it can be done without, Triton is told to
leave configurations as they are. What an archive's leaves out is completed here, by the backend's or the model's own
`auto_complete_config` in a process that ends with it (serving.preparation.completer).
"""

import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from serving.errors import LoadFailed
from serving.repository.archives import Archive
from serving.repository.layout import CONFIG, PLATFORMS, config_file, config_name, config_text, folders_in, is_model
from serving.settings.table import Settings
from serving.supervisor import triton_options

DISABLE = "--disable-auto-complete-config"
HOOK = "auto_complete_config"
HERE = Path(__file__).resolve().parents[2]
_TEXT = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")
_BACKEND = re.compile(r"\b(?:backend|platform)\s*:\s*[\"'](\w+)[\"']")
_TENSORS = re.compile(r"\b(input|output)\s*:?\s*[\[{]")
_FIELDS = [re.compile(rf"\b{name}\s*:") for name in ("name", "data_type", "dims")]


def is_needless(settings: Settings, backends: Path) -> bool:
    """Whether Triton needs to complete nothing: all models that it could load are complete and of backends written in
    Python, for others complete more than what is missing; or, as archives are completed here, all backends are such."""
    python_based = triton_options.python_backends(backends)
    if settings.multi_model:
        return all(folder.name in python_based for folder in backends.glob("*/"))
    repositories = settings.model_repositories
    if any("model-control-mode" in argument for argument in settings.additional_arguments):
        return False  # models may come later
    if not all(folder.is_dir() for folder in repositories):
        return False  # one that is made when TensorRT plans are
    models = [model for folder in repositories for model in folders_in(folder) if is_model(model)]
    return all(_stands(model, settings.device, python_based) for model in models)


def _stands(model: Path, device: str, python_based: Collection[str]) -> bool:
    found = _BACKEND.findall(config_text(model, device))
    backends = {backend_of(name) for name in found}
    return is_complete(model, device) and backends <= {"ensemble", *python_based}


def is_complete(model: Path, device: str) -> bool:
    """Whether the configuration says all that Triton must know, and the model has nothing to add by code of its own:
    a backend, and inputs and outputs of which each has a name, a type and dimensions. Told by the text alone."""
    config = config_text(model, device)
    tensors = dict(_tensors(_TEXT.sub('""', config)))
    own = any(HOOK in code.read_text(encoding="utf-8", errors="replace") for code in model.glob("*/model.py"))
    return bool(_BACKEND.search(config)) and tensors == {"input": True, "output": True} and not own


def backend_of(name: str) -> str:
    """The backend of a platform; another name is one itself."""
    return PLATFORMS[name][0] if name in PLATFORMS else name


def _tensors(plain: str) -> Iterator[tuple[str, bool]]:
    """(input or output, whether they all are complete) of each such field that is not within another one."""
    complete: dict[str, bool] = {}
    for field in _TENSORS.finditer(plain):
        before = plain[: field.start()]
        if before.count("{") == before.count("}") and before.count("[") == before.count("]"):
            counts = {len(each.findall(_block(plain, field.end()))) for each in _FIELDS}
            complete[field[1]] = complete.get(field[1], True) and len(counts) == 1 and counts != {0}
    yield from complete.items()


def _block(plain: str, start: int) -> str:
    """The text from there to the bracket that closes the one before it."""
    depth = 1
    for end in range(start, len(plain)):
        depth += (plain[end] in "[{") - (plain[end] in "]}")
        if not depth:
            return plain[start:end]
    return plain[start:]


class Completion:
    """Completes what archives leave out, before Triton sees them."""

    def __init__(self, settings: Settings, backends: Path) -> None:
        self.settings, self.backends = settings, backends
        self.ours = is_needless(settings, backends)

    def fit(self, archive: Archive, staged: Path) -> None:
        """Changes what is staged of the archive for Triton; raises LoadFailed."""
        for part in archive.parts if self.ours else ():
            if not is_complete(staged / part.name, self.settings.device):
                self._complete(staged / part.name)

    def _complete(self, model: Path) -> None:
        file = config_file(model, config_name(self.settings.device))
        command = [sys.executable, "-m", "serving.preparation.completer", str(model), str(file), str(self.backends)]
        try:
            done = subprocess.run(
                command,
                cwd=HERE,
                env=os.environ | {"PYTHONPATH": str(HERE)},
                capture_output=True,
                text=True,
                check=False,
                timeout=self.settings.load_timeout,
            )
        except subprocess.TimeoutExpired as err:
            raise LoadFailed(
                f"the configuration of '{model.name}' is not complete, and completing it took more than "
                f"{self.settings.load_timeout:g} s"
            ) from err
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise LoadFailed(f"the configuration of '{model.name}' is not complete, and cannot be completed: {reason}")
        for name in (CONFIG, "configs"):
            (model / name).unlink(missing_ok=True)  # links
        (model / CONFIG).write_text(done.stdout, encoding="utf-8")
