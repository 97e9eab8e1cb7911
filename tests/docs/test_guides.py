"""The guides are true: their commands run, in order, in a fresh checkout, and print what the pages show.

The platform is the simulator. What needs AWS is run with --dry-run; of what needs a GPU only the command line is taken.
"""

import re
import shlex
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from build_engines.__main__ import main as build_engines
from tests.support.account import account
from tests.support.harness import PATIENCE, ROOT
from tests.support.readme import AWS, GPU, NEEDS, Block, Reader, fresh_checkout, read_blocks

FOLDER = ROOT / "docs/guides"
INDEX = FOLDER / "README.md"
GUIDES = sorted(page for page in FOLDER.glob("*.md") if page != INDEX)
pytestmark = [pytest.mark.stack, pytest.mark.timeout(10 * PATIENCE)]  # the first test of a guide follows all of it


def shell(page: Path) -> list[Block]:
    return [block for block in read_blocks(page.read_text()) if block.language == "sh"]


def commands(page: Path, marker: str, program: str) -> list[list[str]]:
    """The arguments of each call of `python -m PROGRAM` below that marker."""
    lines = chain.from_iterable(block.commands for block in shell(page) if block.marker == marker)
    return [words[3:] for line in lines if (words := shlex.split(line))[1:3] == ["-m", program]]


@pytest.fixture(scope="module", params=GUIDES, ids=lambda page: page.stem)
def page(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(scope="module")
def reader(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    checkout = fresh_checkout(tmp_path_factory.mktemp(page.stem))
    one = Reader(checkout, list(read_blocks(page.read_text())), files=".")
    yield one
    one.leave()


def test_what_the_guide_says_to_run_gives_what_it_shows(reader: Reader) -> None:
    reader.follow(reader.blocks[-1])
    assert reader.read == len(reader.blocks)


def test_deploy_takes_the_guide_s_command_lines(
    page: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.follow(reader.blocks[-1])  # for the files that they name
    monkeypatch.chdir(reader.checkout)
    with account() as aws:
        for words in commands(page, AWS, "deploy"):
            assert aws.deploy(*words, "--dry-run") == 0, f"{words}\n{capsys.readouterr().err}"


def test_what_needs_a_gpu_is_understood_and_says_what_is_missing(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in commands(page, GPU, "build_engines"):
        code, told = build_engines(words), capsys.readouterr().err
        assert code in (0, 1), told
        assert len(told.splitlines()) == code, told


def test_the_guide_ends_with_what_to_run_on_aws(page: Path) -> None:
    last = shell(page)[-1]
    assert (last.section, last.marker) == ("On AWS", AWS)
    names = [found["name"] for line in last.commands if (found := re.search(r"--name (?P<name>\S+)", line))]
    assert len(set(names)) == 1
    assert "deploy create" in last.text
    assert "deploy delete" in last.commands[-1]


def test_every_block_of_the_guide_is_executed_or_says_what_it_needs(page: Path) -> None:
    text = page.read_text()
    assert len(list(read_blocks(text))) == text.count("\n```") / 2
    assert {block.marker for block in shell(page)} <= {"", *NEEDS}


def test_the_index_names_every_guide() -> None:
    named = re.findall(r"^\| \[([\w.-]+)\]\(\1\)", INDEX.read_text(), re.MULTILINE)
    assert sorted(named) == [page.name for page in GUIDES]
