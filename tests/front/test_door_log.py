"""The counting of requests that went past Python, from a file as nginx writes it."""

from pathlib import Path

import pytest

from serving.front.door_log import DoorLog
from serving.front.metrics import Metrics

LINE = "scale 2 0.004\n"
COUNTED = 'serve_requests_total{code="200",model="scale",version="2"}'


@pytest.fixture
def door(tmp_path: Path) -> tuple[Path, Metrics, DoorLog]:
    file, metrics = tmp_path / "door.log", Metrics()
    return file, metrics, DoorLog(file, metrics)


def values(metrics: Metrics) -> dict[str, float]:
    lines = metrics.render(None, 0).decode().splitlines()
    return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_no_file_is_no_requests(door: tuple[Path, Metrics, DoorLog]) -> None:
    _, metrics, log = door
    log.read()
    assert not [name for name in values(metrics) if name.startswith("serve_requests")]


def test_requests_are_counted_once_each_with_their_times(door: tuple[Path, Metrics, DoorLog]) -> None:
    file, metrics, log = door
    file.write_text(LINE * 3)
    log.read()
    with file.open("a") as more:
        more.write(LINE + "scale 2 0.500\n")
    log.read()
    log.read()
    found = values(metrics)
    assert found[COUNTED] == 5
    assert found['serve_request_seconds_bucket{le="0.005",model="scale"}'] == 4
    assert found['serve_request_seconds_count{model="scale"}'] == 5
    assert found['serve_request_seconds_sum{model="scale"}'] == pytest.approx(4 * 0.004 + 0.5)
    assert found["serve_in_flight"] == 0


def test_what_nginx_refused_is_counted_as_flasks_refusals_are(door: tuple[Path, Metrics, DoorLog]) -> None:
    file, metrics, log = door
    file.write_text("refused\n" + LINE + 2 * "refused\n")
    log.read()
    found = values(metrics)
    assert (found['serve_requests_total{code="503",model="",version=""}'], found[COUNTED]) == (3, 1)
    assert (found['serve_request_seconds_count{model=""}'], found['serve_request_seconds_sum{model=""}']) == (3, 0)


def test_half_a_line_waits_for_its_other_half(door: tuple[Path, Metrics, DoorLog]) -> None:
    file, metrics, log = door
    file.write_text(LINE + LINE[:9])
    log.read()
    with file.open("a") as more:
        more.write(LINE[9:])
    log.read()
    assert values(metrics)[COUNTED] == 2


def test_another_reader_counts_nothing_twice_and_nginx_goes_on_writing(door: tuple[Path, Metrics, DoorLog]) -> None:
    file, metrics, log = door
    with file.open("a") as nginx:
        for reader in (log, DoorLog(file, metrics), log):
            nginx.write(LINE)
            nginx.flush()
            reader.read()
    assert values(metrics)[COUNTED] == 3
    assert file.stat().st_size == 0


@pytest.mark.parametrize("broken", [b"scale 2\n", b"scale 2 -\n", b"sc\xffle 2 0.004\n", b"\n"])
def test_a_line_that_cannot_be_read_is_left_out_and_told_of(
    door: tuple[Path, Metrics, DoorLog], caplog: pytest.LogCaptureFixture, broken: bytes
) -> None:
    file, metrics, log = door
    file.write_bytes(LINE.encode() + broken + LINE.encode())
    log.read()
    assert values(metrics)[COUNTED] == 2
    assert repr(broken) in caplog.text
