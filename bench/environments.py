"""The peers' environments: `.cache/bench/NAME/venv`, made from the folder's requirements.lock with pip.

`report` is not a peer; it has matplotlib, which draws the pictures. torch is in no lock, as in the project's own
(requirements/dev.in says why): it is installed first, and the lock has what it needs.
"""

import subprocess
import sys
from pathlib import Path

from bench.repository import CACHE, ROOT, Unprepared

LOCKS = ROOT / "bench" / "peers"
REPORT = "report"
TORCH, WITH_TORCH = ROOT / "requirements" / "torch.txt", ("infinity",)


def python_of(name: str) -> Path:
    """The interpreter of that environment; this one for a peer without an environment."""
    return CACHE / name / "venv" / "bin" / "python" if name else Path(sys.executable)


def lock_of(name: str) -> Path:
    """The environment's lock file."""
    return ROOT / "bench" / "report.lock" if name == REPORT else LOCKS / name / "requirements.lock"


def is_current(name: str) -> bool:
    """Whether the environment is installed with the versions of its lock file."""
    done = CACHE / name / "installed"
    return not name or (done.is_file() and done.read_bytes() == _wanted(name))


def _wanted(name: str) -> bytes:
    return b"".join(file.read_bytes() for file in [TORCH] * (name in WITH_TORCH) + [lock_of(name)])


def install(name: str) -> None:
    """Rebuilds the environment unless it is current; Unprepared says why that failed."""
    if is_current(name):
        return
    folder = CACHE / name / "venv"
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(python_of(name)), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if name in WITH_TORCH:
        _run([*pip, "--no-deps", "-r", str(TORCH)])
    _run([*pip, "-r", str(lock_of(name))])
    (CACHE / name / "installed").write_bytes(_wanted(name))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()[-1:]
        raise Unprepared("; ".join(lines) or f"{command[0]} fails")


def versions(name: str) -> dict[str, str]:
    """{package: version} from the lock file."""
    lines = (line for line in lock_of(name).read_text().splitlines() if "==" in line)
    return dict(line.split("==", 1) for line in lines)
