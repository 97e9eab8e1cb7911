"""What one request may take: each figure is kept, and docs/security.md says it."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from serving import budget
from serving.budget import (
    MOST_JSON_PARTS,
    NEVER,
    Budget,
    Deadline,
    check_count,
    check_time,
    in_time,
    read_json,
)
from serving.errors import LONGEST, InvalidRequest, PayloadTooLarge, TooLate
from serving.settings.table import Settings
from tests.support.deadlines import within
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit


def test_as_many_as_the_limit_are_taken_and_one_more_is_413_that_names_the_limit() -> None:
    check_count(3, 3, "lines")
    with pytest.raises(PayloadTooLarge, match=r"\b3\b"):
        check_count(4, 3, "lines")


@pytest.mark.parametrize("each", [b"{}", b"[]", b'""'])
def test_json_of_very_many_parts_is_refused_before_it_is_read(each: bytes) -> None:
    assert (
        len(read_json(b"[" + b",".join([each] * (MOST_JSON_PARTS - 1)) + b"]"))
        == MOST_JSON_PARTS - 1
    )
    with pytest.raises(PayloadTooLarge):
        read_json(b"[" + b",".join([each] * MOST_JSON_PARTS) + b"]")


def test_numbers_of_json_are_bounded_by_the_body_alone() -> None:
    assert len(read_json(b"[0" + b",0" * MOST_JSON_PARTS + b"]")) == MOST_JSON_PARTS + 1


def test_a_loop_over_a_caller_s_data_ends_when_the_time_is_over() -> None:
    assert list(in_time(range(5000))) == list(range(5000))
    with within(Deadline.after(-1)), pytest.raises(TooLate):
        list(in_time(range(5000)))


def test_a_loop_ends_when_the_processor_s_share_is_used_up() -> None:
    with within(NEVER, seconds=0.0), pytest.raises(TooLate, match="SERVE_REQUEST_TIMEOUT"):
        check_time()


def test_the_threads_that_work_for_a_request_share_its_deadline_alone() -> None:
    with ThreadPoolExecutor(1) as pool:
        with within(Deadline.after(-1)), pytest.raises(TooLate):
            pool.submit(copy_context().run, check_time).result()
        with within(NEVER, seconds=0.0):
            pool.submit(copy_context().run, check_time).result()
        pool.submit(check_time).result()


def test_the_answer_s_json_may_be_ten_times_the_largest_body() -> None:
    own = Budget(body_bytes=100)
    own.check_output(1000)
    with pytest.raises(PayloadTooLarge, match="SERVE_MAX_BODY_MB"):
        own.check_output(1001)


def test_an_error_s_text_is_cut_however_long_the_name_that_it_quotes() -> None:
    assert InvalidRequest("x" * LONGEST).fields()["error"] == "x" * LONGEST
    assert len(InvalidRequest("x" * 10**7).fields()["error"]) == LONGEST + 1


def test_the_figures_without_settings_are_those_of_the_defaults() -> None:
    assert Budget() == Budget(Settings.from_env({}).max_body_bytes)


def test_the_page_of_limits_has_every_figure() -> None:
    """A row of the table says the figure and its name in serving/budget.py, or its setting."""
    page = (ROOT / "docs/security.md").read_text().split("## Bounds")[1].split("## ")[0]
    bounds = "MOST_|OUTPUT_|PROCESSOR_"
    figures = {name: value for name, value in vars(budget).items() if re.match(bounds, name)}
    assert len(figures) == 14
    for name, value in figures.items():
        assert re.search(rf"^\|.*\b{value:,}(?:th)?\b.*\| \d.*`{name}`", page, re.MULTILINE), name
    for name in (
        "SERVE_MAX_BODY_MB",
        "max_image_pixels",
        "SERVE_REQUEST_TIMEOUT",
        "SERVE_MAX_CONCURRENCY",
    ):
        assert re.search(rf"^\|.*\| \d.*`{name}`", page, re.MULTILINE), name


def test_a_deadline_gives_the_seconds_that_are_left() -> None:
    assert 0 < Deadline.after(7.0).left(54.0) <= 7.0
    assert Deadline.after(7.0).left(1.0) == 1.0
