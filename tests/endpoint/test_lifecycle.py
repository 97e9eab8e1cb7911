"""What happens when processes die, stop, or cannot start; each test has a container of its own."""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import requests

from tests.support.harness import ROOT, Server, link_model, make_scale, make_sleeper, wait_until
from tests.support.load import Load

pytestmark = pytest.mark.stack

EXAMPLE = (ROOT / "model_repository/resnet/example.png").read_bytes()
SCALE = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
Start = Callable[..., Server]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository that is ready quickly: a model with a client, one with tensors, one that sleeps."""
    folder = tmp_path / "models"
    folder.mkdir()
    link_model(ROOT / "model_repository/resnet", folder)
    make_scale(folder)
    make_sleeper(folder)
    return folder


@pytest.fixture
def start(tmp_path: Path, small: Path) -> Iterator[Start]:
    servers: list[Server] = []

    def starter(**variables: str) -> Server:
        servers.append(Server(tmp_path, small, **variables))
        return servers[-1]

    yield starter
    for server in servers:
        server.stop()
    assert [server.processes() for server in servers] == [[]] * len(servers)


def mixed(server: Server) -> Callable[[int], requests.Response]:
    """Tensors and images in turn."""

    def call(number: int) -> requests.Response:
        if number % 2:
            return server.post(params={"model_name": "scale"}, json=SCALE)
        return server.post(params={"model_name": "resnet"}, data=EXAMPLE, headers={"Content-Type": "image/png"})

    return call


def catches(pid: int, number: int) -> bool:
    """Whether the process has asked for that signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


def test_a_signal_that_comes_before_anything_runs_ends_it_too(start: Start) -> None:
    server = start()
    pid = server.process.pid
    while not catches(pid, signal.SIGTERM):
        assert server.process.poll() is None
    assert not server.run_dir.exists()
    assert server.stop() == 0
    assert not server.run_dir.exists()


@pytest.mark.parametrize("name", ["tritonserver", "gunicorn"])
def test_a_process_killed_under_load_gives_503s_and_then_200s_again(start: Start, name: str) -> None:
    server = start().wait_ready()
    with Load(mixed(server), callers=16) as load:
        wait_until(lambda: load.answers["200"] > 50, "a first load of 200s")
        server.replace(name)
        server.wait_ready()
        meanwhile = load.begin_anew()
        wait_until(lambda: load.answers["200"] > 50, "200s again")
    assert {answer.split()[0] for answer in meanwhile} == {"200", "503"}, meanwhile
    assert set(load.answers) == {"200"}, load.answers
    assert load.refused == 0
    assert load.cut <= (load.callers if name == "gunicorn" else 0)  # replies that it was writing when it was killed


def ping_that_says(server: Server, word: str) -> requests.Response:
    """The first 503 of /ping with this word in its error."""

    def says() -> list[requests.Response]:
        with contextlib.suppress(requests.ConnectionError):
            reply = server.get("/ping")
            return [reply] if reply.status_code == 503 and word in reply.json()["error"] else []
        return []

    (found,) = wait_until(says, f"/ping says {word}")
    return found  # type: ignore[no-any-return]


def test_the_503_names_the_process_that_died(start: Start) -> None:
    server = start().wait_ready()
    with server.unattended():
        for name, code in (("tritonserver", "triton_unavailable"), ("gunicorn", "frontend_unavailable")):
            os.killpg(server.pid(name), signal.SIGKILL)
            reply = ping_that_says(server, name)
            assert reply.json()["code"] == code
            assert reply.headers["Retry-After"] == "1"
    server.wait_ready()


def test_a_model_s_process_killed_under_load_is_replaced_without_a_new_tritonserver(start: Start) -> None:
    """The kernel takes the largest process first when memory is short."""
    server = start().wait_ready()
    triton, workers = server.pid("tritonserver"), children(server.pid("gunicorn"))
    (killed,) = version_2(server)
    with Load(lambda _: server.post(params={"model_name": "scale"}, json=SCALE), callers=8) as load:
        wait_until(lambda: load.answers["200"] > 0, "a first 200")
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: version_2(server) not in ([], [killed]), "another process")
        wait_until(lambda: load.answers["503 model_restarting"] > 0, "it was said")
        wait_until(lambda: server.post(params={"model_name": "scale"}, json=SCALE).ok, "a 200 again")
        load.begin_anew()
        wait_until(lambda: load.answers["200"] > 50, "200s again")
        assert set(load.answers) == {"200"}
    assert load.cut == load.refused == 0
    assert (server.pid("tritonserver"), children(server.pid("gunicorn"))) == (triton, workers)


def version_2(server: Server) -> list[int]:
    """The living processes of `scale`'s version 2."""
    found = []
    for pid in server.processes():
        with contextlib.suppress(OSError):
            found += [pid] if b"/scale/2/" in Path(f"/proc/{pid}/cmdline").read_bytes() else []
    return found


def children(pid: int) -> set[int]:
    return {child.pid for child in psutil.Process(pid).children()}


def test_nginx_killed_is_started_again(start: Start) -> None:
    server = start().wait_ready()
    server.replace("nginx")
    server.wait_ready()


def access_log(server: Server) -> list[dict[str, object]]:
    return [entry for entry in server.entries("nginx") if "status" in entry]


def test_sigterm_under_load_loses_no_accepted_request(start: Start) -> None:
    server = start().wait_ready()
    with Load(mixed(server), callers=24) as load:
        wait_until(lambda: load.answers["200"] > 100, "a load of 200s")
        assert server.stop() == 0
    assert set(load.answers) == {"200"}, load.answers
    assert load.cut == 0
    logged = [line for line in access_log(server) if line["path"] == "/invocations"]
    assert {line["status"] for line in logged} == {200}
    assert len(logged) == load.answers["200"]


def test_a_request_that_is_slow_is_finished_before_the_stop(start: Start) -> None:
    server = start().wait_ready()
    replies: list[requests.Response] = []

    def slow(number: int) -> requests.Response:
        replies.append(server.post(json={"model_name": "sleeper", "instances": [4]}))
        return replies[-1]

    with Load(slow, callers=1) as load:
        wait_until(lambda: server.in_work() == 1, "it is in work")
        assert server.stop() == 0
    assert replies[0].json()["predictions"] == [4.0]
    assert load.answers == {"200": len(replies)}


def test_sigint_while_starting_stops_everything(start: Start) -> None:
    server = start()
    wait_until(lambda: (server.run_dir / "status.json").exists(), "a status")
    assert server.stop(signal.SIGINT) == 0
    server.wait_gone()


def ends_at_once(server: Server) -> str:
    """The last line of a start that does not take the time that it has."""
    assert server.wait_ended() != 0
    return str(server.entries("serve")[-1]["message"])


def test_a_damaged_model_is_named_and_ends_the_start(small: Path, start: Start) -> None:
    (small / "scale/2/model.onnx").write_bytes(b"not onnx")
    assert "scale/2/model.onnx" in ends_at_once(start(SERVE_START_TIMEOUT="600"))


def test_a_model_that_triton_gives_up_is_named_and_ends_the_start(small: Path, start: Start) -> None:
    (small / "sleeper/1/model.py").write_text("import a_module_that_is_missing\n")
    told = ends_at_once(start(SERVE_START_TIMEOUT="600"))
    assert "/ping: 503 model 'sleeper'" in told


def test_a_client_that_cannot_be_made_is_named_and_ends_the_start(small: Path, start: Start) -> None:
    (small / "sleeper/client.py").write_text("import a_library_that_is_missing\n")
    told = ends_at_once(start(SERVE_START_TIMEOUT="600"))
    assert "'sleeper'" in told and "'a_library_that_is_missing'" in told


def test_more_requests_than_the_limit_are_told_to_come_back_while_ping_answers(start: Start) -> None:
    server = start(SERVE_MAX_CONCURRENCY="2", SERVE_WORKERS="1").wait_ready()
    with Load(lambda _: server.post(json={"model_name": "sleeper", "instances": [1]}), callers=6) as load:
        wait_until(lambda: load.answers["503 overloaded"] > 0, "a 503")
        pings = [server.get("/ping") for _ in range(5)]
    assert {ping.status_code for ping in pings} == {200}
    assert set(load.answers) == {"200", "503 overloaded"}


def test_callers_who_leave_do_not_take_more_threads_than_the_limit(start: Start) -> None:
    """Accept names a stream, but the reply is none: the work goes on when its caller has left, and counts until its
    end."""
    server = start(SERVE_MAX_CONCURRENCY="4", SERVE_WORKERS="1", SERVE_STOP_TIMEOUT="1").wait_ready()
    body = json.dumps({"model_name": "sleeper", "instances": [30]}).encode()
    head = "POST /invocations HTTP/1.1\r\nHost: x\r\nAccept: application/json, text/event-stream;q=0.1\r\n"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port)) as caller:
            caller.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            # nginx sends the request on before it sees that the caller has left
            wait_until(lambda: 0 < server.in_work() <= 4, "the request is in work, or refused")
        assert server.get("/ping").status_code == 200
    assert server.in_work() <= 4


def test_the_default_model_answers_what_names_none(start: Start) -> None:
    server = start(SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="scale").wait_ready()
    reply = server.post(json=SCALE)
    assert (reply.status_code, reply.headers["X-Model-Name"]) == (200, "scale")


def test_nothing_is_written_but_in_the_run_folder(start: Start, tmp_path: Path) -> None:
    before = time.time()
    server = start().wait_ready()
    mixed(server)(0)
    server.stop()
    assert [path for path in checked_out() if path.stat().st_mtime > before] == []


def checked_out() -> Iterator[Path]:
    """All files but those of tools, and what the bench and the image's build make, whose tests may run meanwhile."""
    tools = {".git", ".venv", "__pycache__", ".cache", "dist"}
    tools |= {".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
    for place, folders, names in os.walk(ROOT):
        folders[:] = set(folders) - tools
        yield from (Path(place, name) for name in names)
