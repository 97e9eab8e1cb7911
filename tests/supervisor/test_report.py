"""`serve --status`, where nothing serves and where what serves does not answer."""

import os
from pathlib import Path

from serving.host.status import LogError, ProcessStatus, Status, write_status
from serving.supervisor.report import columns, read_samples, rows_of
from tests.supervisor.test_serve import run
from tests.support.harness import free_port


def test_without_a_server_it_is_one_line_and_a_failure(tmp_path: Path) -> None:
    done = run("--status", TMPDIR=str(tmp_path), PORT="8123")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"no server with PORT=8123 runs here, by the files in {tmp_path}/serve-*: say the PORT and the SERVE_RUN_DIR "
        "that it has, as its user\n"
    )


def status_of(folder: Path, pid: int, port: int) -> None:
    folder.mkdir()
    processes = {"gunicorn": ProcessStatus(None, 3, "backing off", "exited with status 1")}
    error = LogError(1e9, "nginx", "red \x1b[31m")
    write_status(folder / "status.json", Status("starting", processes, pid, 1e9, ("127.0.0.1", port), [error]))


def test_a_front_that_does_not_answer_hides_nothing_of_the_processes(tmp_path: Path) -> None:
    port = free_port()
    status_of(tmp_path / "serve-a", os.getpid(), port)
    done = run("--status", TMPDIR=str(tmp_path), PORT=str(port))
    assert done.returncode == 0, done.stderr
    blocks = [block.splitlines() for block in done.stdout.split("\n\n")]
    assert "is starting at" in blocks[0][0] and "refused" in blocks[0][0]
    assert blocks[1][1].split()[:3] == ["serve", "running", str(os.getpid())]
    assert blocks[1][2].split() == ["gunicorn", "backing", "off", "2", "exited", "with", "status", "1"]
    assert "refused" in blocks[2][0]
    assert blocks[3][0] == "LAST ERRORS" and blocks[3][1].endswith(r"  nginx: red \u001b[31m")


def test_a_server_that_has_ended_is_none_and_those_on_other_ports_are_named(tmp_path: Path) -> None:
    status_of(tmp_path / "serve-gone", 2**22 + 1, 8123)  # more than any pid
    status_of(tmp_path / "serve-other", os.getpid(), 8124)
    status_of(tmp_path / "serve-third", os.getpid(), 8125)
    (tmp_path / "serve-none").mkdir()
    (tmp_path / "serve-none/status.json").write_text("[]")
    done = run("--status", TMPDIR=str(tmp_path), PORT="8123")
    assert done.returncode == 1
    assert "(there are servers with PORT=8124, 8125)" in done.stderr


def test_samples_have_labels_and_comments_are_none() -> None:
    text = '# HELP a b\na{model="x\\"y",code="200"} 2.0\nb 3\n'
    found = [(each.name, dict(each.labels), each.value) for each in read_samples(text)]
    assert found == [("a", {"model": 'x"y', "code": "200"}, 2.0), ("b", {}, 3.0)]


def test_an_archive_of_multi_model_mode_has_the_requests_of_all_its_versions() -> None:
    line = 'serve_requests_total{{model="a",version="{}",code="{}"}} {}\n'
    text = line.format(1, 200, 2) + line.format("", 503, 1)
    assert list(rows_of({"modelName": "a", "modelUrl": "/opt/ml/models/1/model"}, list(read_samples(text)))) == [
        ("a", "", "READY", "", 3, 1, 0, "")
    ]


def test_requests_that_no_version_answered_have_a_row_where_there_are_several() -> None:
    line = 'serve_requests_total{{model="a",version="{}",code="{}"}} {}\n'
    samples = list(read_samples(line.format(1, 200, 2) + line.format("", 400, 1)))
    versions = [{"version": version, "state": "READY", "reason": ""} for version in ("1", "2")]
    one, both = ({"name": "a", "versions": versions[:count]} for count in (1, 2))
    assert list(rows_of(one, samples)) == [("a", "1", "READY", "", 3, 1, 0, "")]
    assert list(rows_of(both, samples)) == [
        ("a", "1", "READY", "", 2, 0, 0, ""),
        ("a", "2", "READY", "", 0, 0, 0, ""),
        ("a", "none", "", "", 1, 1, 0, ""),
    ]


def test_a_column_without_a_value_is_left_out() -> None:
    assert columns(("A", "B", "C"), [("x", "", 1), ("long", "", 20)]) == ["A     C", "x     1", "long  20"]
