"""docs/deploy.md is true: its commands run, its options exist; and only a few modules know boto3."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

from deploy.commandline import COMMANDS, build_parser
from tests.deploy.conftest import Aws
from tests.support.harness import ROOT

TEXT = (ROOT / "docs/deploy.md").read_text()
LINES = re.findall(r"^\.venv/bin/python -m deploy (.*)$", TEXT.replace("\\\n", " "), re.MULTILINE)
OTHERS = {
    "--require-hashes",
    "--provenance",
    "--output",
    "--role-name",
    "--assume-role-policy-document",
    "--policy-name",
    "--policy-document",
}  # of pip, docker and aws


@pytest.mark.parametrize("line", LINES)
def test_each_command_line_works_as_a_dry_run(
    aws: Aws, docker: Path, monkeypatch: pytest.MonkeyPatch, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert aws.deploy(*shlex.split(line), "--dry-run") == 0, capsys.readouterr().err
    assert not docker.exists()


def options() -> set[str]:
    """All options of all commands."""
    (commands,) = [each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction)]
    return {option for command in commands.choices.values() for option in command._option_string_actions}


def test_every_option_in_the_text_exists() -> None:
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", TEXT)) - OTHERS <= options()


def test_every_command_is_described() -> None:
    assert not [name for name in COMMANDS if f"`{name}`" not in TEXT]


def test_only_four_modules_know_boto3() -> None:
    know = {path.stem for path in (ROOT / "deploy").glob("*.py") if re.search(r"(import|from) boto", path.read_text())}
    assert know == {"calls", "commandline", "errors", "regions"}
