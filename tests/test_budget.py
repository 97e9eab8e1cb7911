"""Tests the limits for one request: each is enforced, and docs/security.md lists it."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from serving import budget
from serving.budget import (
    MOST_JSON_PARTS,
    NEVER,
    PROCESSOR_PART,
    Budget,
    Deadline,
    charge_time,
    check_count,
    check_time,
    in_time,
    read_json,
)
from serving.errors import LONGEST, InvalidRequest, PayloadTooLarge, TooLate
from serving.settings.settings import Settings
from tests.support.deadlines import within
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit


def test_answer_413_naming_the_limit_for_one_more_than_allowed() -> None:
    check_count(3, 3, "lines")
    with pytest.raises(PayloadTooLarge, match=r"\b3\b"):
        check_count(4, 3, "lines")


@pytest.mark.parametrize("each", [b"{}", b"[]", b'""'])
def test_refuse_json_of_too_many_parts_before_parsing_it(each: bytes) -> None:
    assert (
        len(read_json(b"[" + b",".join([each] * (MOST_JSON_PARTS - 1)) + b"]"))
        == MOST_JSON_PARTS - 1
    )
    with pytest.raises(PayloadTooLarge):
        read_json(b"[" + b",".join([each] * MOST_JSON_PARTS) + b"]")


def test_bound_json_numbers_by_the_body_alone() -> None:
    assert len(read_json(b"[0" + b",0" * MOST_JSON_PARTS + b"]")) == MOST_JSON_PARTS + 1


def test_stop_loops_over_a_caller_s_data_at_the_deadline() -> None:
    assert list(in_time(range(5000))) == list(range(5000))
    with within(Deadline.after(-1)), pytest.raises(TooLate):
        list(in_time(range(5000)))


def test_stop_loops_when_the_share_of_the_processor_is_used_up() -> None:
    with within(NEVER, seconds=0.0), pytest.raises(TooLate, match="SERVE_REQUEST_TIMEOUT"):
        check_time()
    with within(NEVER, seconds=0.0, sent=10**9):
        check_time()


def test_give_decoding_threads_the_deadline_of_their_request() -> None:
    with ThreadPoolExecutor(1) as pool:
        with within(Deadline.after(-1)), pytest.raises(TooLate):
            pool.submit(copy_context().run, check_time).result()
        with within(NEVER, seconds=0.0):
            pool.submit(copy_context().run, check_time).result()
        pool.submit(check_time).result()


def test_count_the_processor_time_of_other_threads() -> None:
    with within(NEVER, seconds=PROCESSOR_PART * 1000.0):
        charge_time(500.0)
        check_time()
        charge_time(500.0)
        with pytest.raises(TooLate, match="SERVE_REQUEST_TIMEOUT"):
            check_time()


def test_allow_answers_of_ten_times_the_largest_body() -> None:
    own = Budget(body_bytes=100)
    own.check_output(1000)
    with pytest.raises(PayloadTooLarge, match="SERVE_MAX_BODY_MB"):
        own.check_output(1001)


def test_cut_an_error_message_that_quotes_a_long_name() -> None:
    assert InvalidRequest("x" * LONGEST).fields()["error"] == "x" * LONGEST
    assert len(InvalidRequest("x" * 10**7).fields()["error"]) == LONGEST + 1


def test_derive_the_default_limits_from_the_default_settings() -> None:
    assert Budget() == Budget(Settings.from_env({}).max_body_bytes)


def test_list_every_bound_on_the_page_of_bounds() -> None:
    """A row of the table contains the figure, and its name in serving/budget.py or its setting."""
    page = (ROOT / "docs/security.md").read_text().split("## Bounds")[1].split("## ")[0]
    bounds = "MOST_|OUTPUT_|PROCESSOR_"
    figures = {name: value for name, value in vars(budget).items() if re.match(bounds, name)}
    assert len(figures) == 17
    for name, value in figures.items():
        row = rf"^\|.*\| [^|]*\b{value:,}(?:th)?\b[^|]*\(`{name}`"
        assert re.search(row, page, re.MULTILINE), name
    for name in (
        "SERVE_MAX_BODY_MB",
        "max_image_pixels",
        "SERVE_REQUEST_TIMEOUT",
        "SERVE_MAX_CONCURRENCY",
    ):
        assert re.search(rf"^\|.*\(`{name}`\) \|$", page, re.MULTILINE), name


def test_return_the_seconds_left_until_a_deadline() -> None:
    assert 0 < Deadline.after(7.0).left(54.0) <= 7.0
    assert Deadline.after(7.0).left(1.0) == 1.0
