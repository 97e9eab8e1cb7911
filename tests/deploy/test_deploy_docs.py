"""docs/deploy.md is true: its commands run as dry runs, and its options exist."""

import argparse
import re
import shlex

import pytest

from deploy.commandline import build_parser
from tests.support.account import IMAGE, Account
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

TEXT = (ROOT / "docs/deploy.md").read_text()
LINES = re.findall(r"^\.venv/bin/python -m deploy (.*)$", TEXT.replace("\\\n", " "), re.MULTILINE)


@pytest.mark.parametrize("line", LINES)
def test_each_command_line_works_as_a_dry_run(
    aws: Account, monkeypatch: pytest.MonkeyPatch, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)
    if words[0] != "create":
        assert aws.deploy("create", "--image", IMAGE) == 0
    assert aws.deploy(*words, "--dry-run") == 0, capsys.readouterr().err


def test_every_option_in_quotes_exists() -> None:
    (commands,) = [each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction)]
    options = {option for command in commands.choices.values() for option in command._option_string_actions}
    assert set(re.findall(r"(?<=`)--[a-z][a-z0-9-]+", TEXT)) <= options
    assert all(f"`{name}`" in TEXT for name in commands.choices)
