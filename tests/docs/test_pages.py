"""Each page's commands, run in a fresh checkout, print what the page shows."""

from collections.abc import Iterator

import pytest

from tests.docs.test_docs import SHELL
from tests.support.readme import Block, Reader, blocks, fresh_checkout

pytestmark = pytest.mark.stack


TO_FOLLOW = [(page, block) for page, block in SHELL if not block.marker and page != "docs/guides.md"]  # see test_guides


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Reader]]:
    """One for each page whose commands are run."""
    pages = {page for page, _ in TO_FOLLOW}
    made = {page: Reader(fresh_checkout(tmp_path_factory.mktemp("reader")), blocks(page)) for page in sorted(pages)}
    yield made
    for reader in made.values():
        reader.leave()


@pytest.mark.parametrize(
    ("page", "block"), TO_FOLLOW, ids=[f"{page}: {block.commands[0][:60]}" for page, block in TO_FOLLOW]
)
def test_what_a_page_says_to_run_gives_what_it_shows(readers: dict[str, Reader], page: str, block: Block) -> None:
    readers[page].follow(block)
