"""What --chaos takes, and that a seed repeats it."""

import time

import pytest

from simulate.chaos import Chaos, Rates, parse_rates


def test_a_kind_without_a_number_has_a_default_and_none_is_no_chaos() -> None:
    assert parse_rates("") == Rates(0, 0, 0)
    assert parse_rates("slow-disk,kill,507", 7) == Rates(2, 30, 0.2, 7)
    assert parse_rates("kill=5,507=1") == Rates(0, 5, 1)


@pytest.mark.parametrize("text", ["flood", "kill=soon", "507=1.5", "slow-disk=-1", "kill=nan"])
def test_a_mistake_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"not one of|a number from 0 to"):
        parse_rates(text)


def test_a_seed_repeats_the_same_luck() -> None:
    def luck(seed: int) -> list[object]:
        chaos = Chaos(Rates(0, 30, 0.5, seed))
        return [(chaos.refuses_load(), chaos.seconds_to_next_kill(), chaos.choose(10)) for _ in range(20)]

    assert luck(1) == luck(1)
    assert luck(1) != luck(2)


def test_rates_are_kept_on_average() -> None:
    chaos = Chaos(Rates(0, 30, 0.2, 1))
    assert 0.15 < sum(chaos.refuses_load() for _ in range(2000)) / 2000 < 0.25
    assert 25 < sum(chaos.seconds_to_next_kill() for _ in range(2000)) / 2000 < 35


def test_a_slow_disk_takes_its_time() -> None:
    begun = time.monotonic()
    Chaos(Rates(slow_disk=0.1)).wait_for_disk()
    assert time.monotonic() - begun >= 0.1
