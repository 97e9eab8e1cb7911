"""Tests that the workflows in .github follow GitHub's schema, and that each command in them
exists."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
# commands that are installed on GitHub's runners
ON_RUNNERS = {"apt-get", "docker"}
EXPRESSION = re.compile(r"\$\{\{.*?\}\}")


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    return [step for job in jobs for step in job.get("steps", [])]


def commands(path: Path) -> list[list[str]]:
    """Return the words of each command line."""
    scripts = [step["run"].replace("\\\n", " ") for step in steps(path) if "run" in step]
    lines = [EXPRESSION.sub("value", line) for script in scripts for line in script.splitlines()]
    return [shlex.split(line) for line in lines if line.strip()]


def test_find_the_workflows() -> None:
    assert [path.name for path in WORKFLOWS] == ["release.yml", "test.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_follow_the_schema_of_github(path: Path) -> None:
    command = [
        str(ROOT / ".venv/bin/check-jsonschema"),
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_run_only_existing_commands(path: Path) -> None:
    for words in commands(path):
        program = words[0]
        if program == "make":
            targets = [word for word in words[1:] if "=" not in word]
            subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, check=True)
        elif "/" in program:
            assert (ROOT / program).is_file(), program
        else:
            assert program in ON_RUNNERS or shutil.which(program), program


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_call_only_existing_workflows(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    called = [job["uses"] for job in jobs if "uses" in job]
    assert all((ROOT / name).is_file() for name in called)


def test_run_the_same_checks_on_a_push_as_before_a_merge() -> None:
    assert [".ci/run"] in commands(ROOT / ".github/workflows/test.yml")
