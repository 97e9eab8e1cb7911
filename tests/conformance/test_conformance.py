"""Compares this project with native Triton: every difference is explained, and conformance.md is up
to date."""

import pytest

from tests.conformance.behaviours import BUG, Observed
from tests.conformance.table import PAGE, observe, render

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def observed() -> list[Observed]:
    return observe()


def test_list_every_difference_from_native_triton_as_an_improvement(
    observed: list[Observed],
) -> None:
    assert [row for row in observed if row.verdict == BUG] == []


def test_print_the_observed_behaviour_on_the_page(observed: list[Observed]) -> None:
    assert render(observed).splitlines() == PAGE.read_text(encoding="utf-8").splitlines()


def test_have_rows_for_every_section_of_the_contract(observed: list[Observed]) -> None:
    assert {row.behaviour.section for row in observed} == set("123456789")
