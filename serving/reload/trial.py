"""What a changed model must pass before it is served: the findings of a start and of `--check`, each in a process."""

import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from serving.repository.facts import Facts
from serving.settings.table import Settings

HERE = Path(__file__).resolve().parents[2]


class Refused(Exception):
    """What lies there is not served; `reasons` has a line for each mistake."""

    def __init__(self, reasons: Collection[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)


def examine(settings: Settings, repository: Path, names: Collection[str]) -> Facts:
    """What is known of these models, which are all that the repository holds; raises Refused."""
    found = replace(
        settings, model_repositories=(repository,), load_models=tuple(names), default_model=min(names), reload="false"
    )
    survey = _run("survey", found)
    if survey.returncode:
        raise Refused([f"it cannot be read: {_last(survey.stderr)}"])
    facts = Facts.from_json(survey.stdout)
    if mistakes := facts.mistakes or facts.unreadable:
        raise Refused([line for line in mistakes if "\n" not in line])  # the others show a repository as it should be
    check = _run("check", found)
    lines = [line for line in check.stdout.splitlines() if not line.startswith("WARNING: ")]
    if check.returncode:
        raise Refused(lines if check.returncode == 1 and lines else [f"its check ended: {_last(check.stderr)}"])
    return facts


def _run(module: str, settings: Settings) -> "subprocess.CompletedProcess[str]":
    command, environ = [sys.executable, "-m", f"serving.preparation.{module}"], os.environ | settings.environment()
    try:
        return subprocess.run(
            command, env=environ, cwd=HERE, capture_output=True, text=True, timeout=settings.start_timeout, check=False
        )
    except subprocess.TimeoutExpired as err:
        raise Refused([f"its check took more than {settings.start_timeout:g} s (SERVE_START_TIMEOUT)"]) from err


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]
