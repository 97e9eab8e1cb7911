"""Tests that the commands of each page and guide run in order in a fresh checkout, and print what
the page shows. The simulator replaces the platform. Commands that need AWS run with --dry-run, and
commands that need a GPU are only parsed. A small model replaces the models that readers build from
their own files."""

import shlex
from collections.abc import Iterator
from itertools import chain, groupby

import pytest

from build_engines.__main__ import main as build_engines
from tests.docs.test_docs import SHELL
from tests.endpoint.hostile_models import make_text_models
from tests.support.account import account
from tests.support.harness import PATIENCE
from tests.support.readme import AWS, FILES, GPU, Block, Reader, blocks, fresh_checkout

# the first test of a guide runs the whole guide
pytestmark = [pytest.mark.stack, pytest.mark.timeout(10 * PATIENCE)]

GUIDES = {
    title: list(group)
    for title, group in groupby(blocks("docs/guides.md"), lambda block: block.section)
}


@pytest.fixture(scope="module", params=GUIDES.values(), ids=list(GUIDES))
def guide(request: pytest.FixtureRequest) -> list[Block]:
    parts: list[Block] = request.param
    return parts


@pytest.fixture(scope="module")
def reader(guide: list[Block], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    one = Reader(fresh_checkout(tmp_path_factory.mktemp("guide"), guide), guide, files=".")
    if any(block.marker == FILES for block in guide):
        make_text_models(one.checkout / "model_repository", ["ranking"])
    yield one
    one.leave()


def commands(guide: list[Block], marker: str, program: str) -> list[list[str]]:
    """Return the arguments of each call of `python -m PROGRAM` in the block below that marker."""
    lines = chain.from_iterable(
        block.commands for block in guide if block.runs and block.marker == marker
    )
    return [words[3:] for line in lines if (words := shlex.split(line))[1:3] == ["-m", program]]


def test_print_what_a_guide_shows_for_its_commands(reader: Reader) -> None:
    reader.follow(reader.blocks[-1])
    assert reader.read == len(reader.blocks)


def test_parse_the_guide_s_command_lines_with_deploy(
    guide: list[Block],
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reader.follow(reader.blocks[-1])  # this creates the files that the command lines name
    monkeypatch.chdir(reader.checkout)
    with account() as aws:
        for words in commands(guide, AWS, "deploy"):
            assert aws.deploy(*words, "--dry-run") == 0, f"{words}\n{capsys.readouterr().err}"


def test_report_in_one_line_why_a_gpu_command_cannot_run(
    guide: list[Block],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("gpu"))
    for words in commands(guide, GPU, "build_engines"):
        code, error = build_engines(words), capsys.readouterr().err
        assert code in (0, 1), error
        assert len(error.splitlines()) == code, error


TO_FOLLOW = [
    (page, block) for page, block in SHELL if not block.marker and page != "docs/guides.md"
]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Reader]]:
    pages = {page for page, _ in TO_FOLLOW}
    by_page = {
        page: Reader(fresh_checkout(tmp_path_factory.mktemp("reader"), blocks(page)), blocks(page))
        for page in sorted(pages)
    }
    yield by_page
    for reader in by_page.values():
        reader.leave()


@pytest.mark.parametrize(
    ("page", "block"),
    TO_FOLLOW,
    ids=[f"{page}: {block.commands[0][:60]}" for page, block in TO_FOLLOW],
)
def test_print_what_a_page_shows_for_its_commands(
    readers: dict[str, Reader], page: str, block: Block
) -> None:
    readers[page].follow(block)
