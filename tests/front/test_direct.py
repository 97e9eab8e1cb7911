"""The counting of requests that went past Python, from a file as nginx writes it."""

from pathlib import Path

import pytest

from serving.front.direct import DirectLog
from serving.front.metrics import Metrics

LINE = "scale 2 200 0.004 3 80 116\n"


@pytest.fixture
def direct(tmp_path: Path) -> tuple[Path, Metrics, DirectLog]:
    file, metrics = tmp_path / "direct.log", Metrics()
    return file, metrics, DirectLog(file, metrics)


def values(metrics: Metrics) -> dict[str, float]:
    lines = metrics.render(None).decode().splitlines()
    return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_no_file_is_no_requests(direct: tuple[Path, Metrics, DirectLog]) -> None:
    _, metrics, log = direct
    log.read()
    assert not [name for name in values(metrics) if name.startswith("serve_requests")]


def test_requests_are_counted_once_each_with_times_and_sizes(direct: tuple[Path, Metrics, DirectLog]) -> None:
    file, metrics, log = direct
    file.write_text(LINE * 3)
    log.read()
    with file.open("a") as more:
        more.write(LINE + "scale 2 200 0.500 400 80 116\n")
    log.read()
    log.read()
    found = values(metrics)
    assert found['serve_requests_total{code="200",model="scale",version="2"}'] == 5
    assert found['serve_request_seconds_bucket{le="0.005",model="scale"}'] == 4
    assert found['serve_request_seconds_count{model="scale"}'] == 5
    assert found['serve_request_seconds_sum{model="scale"}'] == pytest.approx(4 * 0.004 + 0.5)
    assert found['serve_stage_seconds_sum{model="scale",stage="triton"}'] == pytest.approx(4 * 0.003 + 0.4)
    assert found["serve_request_bytes_sum"] == 400
    assert found["serve_response_bytes_sum"] == 580
    assert found["serve_in_flight"] == 0


def test_half_a_line_waits_for_its_other_half(direct: tuple[Path, Metrics, DirectLog]) -> None:
    file, metrics, log = direct
    file.write_text(LINE + LINE[:9])
    log.read()
    assert values(metrics)['serve_requests_total{code="200",model="scale",version="2"}'] == 1
    with file.open("a") as more:
        more.write(LINE[9:])
    log.read()
    assert values(metrics)['serve_requests_total{code="200",model="scale",version="2"}'] == 2


def test_another_reader_goes_on_where_the_last_one_stopped(direct: tuple[Path, Metrics, DirectLog]) -> None:
    file, metrics, log = direct
    file.write_text(LINE)
    log.read()
    with file.open("a") as more:
        more.write(LINE)
    DirectLog(file, metrics).read()
    assert values(metrics)['serve_requests_total{code="200",model="scale",version="2"}'] == 2


def test_what_was_counted_takes_no_room(direct: tuple[Path, Metrics, DirectLog]) -> None:
    file, _, log = direct
    file.write_text(LINE * 100_000)
    before = file.stat().st_blocks
    log.read()
    assert file.stat().st_blocks < before / 100


@pytest.mark.parametrize(
    "broken", [b"scale 2\n", b"scale 2 200 0.004 3 - 116\n", b"sc\xffle 2 200 0.004 3 80 116\n", b"\n"]
)
def test_a_line_that_cannot_be_read_is_left_out_and_told_of(
    direct: tuple[Path, Metrics, DirectLog], caplog: pytest.LogCaptureFixture, broken: bytes
) -> None:
    file, metrics, log = direct
    file.write_bytes(LINE.encode() + broken + LINE.encode())
    log.read()
    assert values(metrics)['serve_requests_total{code="200",model="scale",version="2"}'] == 2
    assert repr(broken) in caplog.text
