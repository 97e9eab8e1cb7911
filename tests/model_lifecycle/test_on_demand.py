"""Tests on-demand mode over real HTTP: the first call to a model loads it, and other models are
evicted to make room."""

import contextlib
import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.model_lifecycle.test_multimodel import CONFIG, make_ensemble, make_model
from tests.support.archives import files_of, share_for
from tests.support.harness import PATIENCE, Server, expect_error, tensor, wait_until

pytestmark = pytest.mark.stack

TARGET = "X-Amzn-SageMaker-Target-Model"
ARCHIVES, ROOM, HOT, CALLERS = 16, 8, 4, 4


def pack(folder: Path, number: int, **more: str) -> None:
    """Write `mNUMBER.tar.gz`, whose model multiplies by its number. `more` are additional files."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".m{number}"
    with tarfile.open(unfinished, "w:gz") as tar:
        for name, text in {**files_of(number), **more}.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, BytesIO(text.encode()))
    unfinished.rename(folder / f"m{number}.tar.gz")


def call(server: Server, name: str, x: float = 2.0, path: str = "") -> requests.Response:
    body = {"inputs": [tensor([x])]}
    if path:
        return server.post(path, json=body)
    return server.post(json=body, headers={TARGET: name})


def answer(reply: requests.Response) -> Any:
    assert reply.status_code == 200, reply.text
    return reply.json()["outputs"][0]["data"]


def loaded(server: Server) -> set[str]:
    listed = server.get("/models").json()["models"]
    return {model["name"] for model in listed if model["state"] == "ready"}


def counted(server: Server, name: str) -> float:
    lines = server.scrape().text.splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


@contextlib.contextmanager
def on_demand(folder: Path, **variables: str) -> Iterator[Server]:
    settings = {
        "SERVE_MODELS": "on-demand",
        "SERVE_WORKERS": "2",
        "SERVE_REQUEST_TIMEOUT": f"{PATIENCE:g}",  # loads are slow on a busy machine
    }
    server = Server(folder, folder / "models", **settings, **variables).wait_ready()
    yield server
    server.stop_later()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("on-demand")
    root = folder / "models"
    pack(root, 1)
    pack(root / "team a/sub", 2)
    make_model(root / "net", 3, label="three")
    make_model(root / "part", 5)
    (root / "whole/1").mkdir(parents=True)
    make_ensemble(folder / "elsewhere", 5, "five")
    for name in ("config.pbtxt", "client.py"):
        (folder / "elsewhere/whole" / name).rename(root / "whole" / name)
    (folder / "outside/1").mkdir(parents=True)
    (folder / "outside/config.pbtxt").write_text(CONFIG)
    (root / "link").symlink_to(folder / "outside")
    with on_demand(folder, SERVE_LOAD_MODELS="part") as running:
        yield running


@pytest.fixture
def repository(server: Server) -> Path:
    return server.log.parent / "models"


def test_load_a_model_by_its_first_call_under_both_of_its_names(server: Server) -> None:
    hits = counted(server, "serve_on_demand_hits_total")
    misses = counted(server, "serve_on_demand_misses_total")
    first = call(server, "m1.tar.gz")
    assert answer(first) == [2.0]
    assert first.headers["Server-Timing"].startswith("load;dur=")
    assert call(server, "m_absent").status_code == 404
    assert counted(server, "serve_on_demand_hits_total") == hits
    assert counted(server, "serve_on_demand_misses_total") == misses + 2
    second = call(server, "m1")
    assert counted(server, "serve_on_demand_hits_total") == hits + 1
    assert answer(second) == [2.0]
    assert "load" not in second.headers["Server-Timing"]
    assert call(server, "m1").json()["model_name"] == "m1"
    assert answer(call(server, "", path="/models/m1/invoke")) == [2.0]
    assert answer(call(server, "", path="/v2/models/m1/infer")) == [2.0]
    server.expect_message("loaded 'm1' in", process="manager")
    assert len(list(server.run_dir.glob("unpacked/*"))) == 1


def test_load_a_model_folder_in_place_and_a_name_with_slashes(server: Server) -> None:
    reply = server.post(json={"model_name": "net", "instances": [2]})
    assert reply.json()["predictions"] == [{"three": 6.0}], reply.text
    assert answer(call(server, "team a/sub/m2")) == [4.0]
    assert answer(call(server, "", path="/models/team%20a/sub/m2.tar.gz/invoke")) == [4.0]


def test_load_an_ensemble_with_the_models_beside_it(server: Server) -> None:
    reply = server.post(json={"model_name": "whole", "instances": [2]})
    assert reply.json()["predictions"] == [{"five": 10.0}], reply.text


def test_load_at_the_start_the_models_that_must_be_loaded(server: Server) -> None:
    wait_until(lambda: "part" in loaded(server), "the model of SERVE_LOAD_MODELS is loaded")


def test_report_counters_before_the_first_eviction(server: Server) -> None:
    assert counted(server, "serve_on_demand_evictions_total") == 0


NAMES = [
    "absent",
    "..",
    "../models/m1",
    "a/../m1",
    "/m1",
    "m1/",
    "m1/1",
    "team a",
    ".m1",
    "__pycache__",
    "m1\n",
    "m1\x00",
    "$(touch x)",
    "n" * 300,
    "n" * 5000,
    "/".join(["n"] * 500),
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_answer_404_for_a_name_that_no_model_has(server: Server, name: str) -> None:
    before = (server.run_dir / "models.json").read_text()
    body = {"model_name": name, "inputs": [tensor([2.0])]}
    expect_error(server.post(data=json.dumps(body)), 404, "model_not_found")
    table = json.loads((server.run_dir / "models.json").read_text())
    assert table["entries"].keys() == json.loads(before)["entries"].keys()
    assert table["rejected"] == []


def test_refuse_a_folder_outside_of_the_repository(server: Server) -> None:
    expect_error(call(server, "link"), 503, "model_failed", "link leads to")


def test_answer_a_get_with_404_if_the_model_is_not_loaded(server: Server, repository: Path) -> None:
    pack(repository, 9)
    expect_error(server.get("/models/m9"), 404, "model_not_loaded", "first call")
    size = (repository / "m9.tar.gz").stat().st_size
    assert {"name": "m9", "bytes": size} in server.get("/models").json()["not_loaded"]


def test_reject_a_broken_archive_until_it_has_changed(server: Server, repository: Path) -> None:
    (repository / "m4.tar.gz").write_bytes(b"no archive")
    for _ in range(2):
        expect_error(call(server, "m4"), 503, "model_failed", "m4.tar.gz cannot be unpacked")
    (refused,) = [r for r in server.get("/models").json()["refused"] if r["models"] == ["m4"]]
    assert 0 < refused["retried_in"] <= 30
    assert server.ping() == 200
    pack(repository, 4)
    wait_until(lambda: call(server, "m4").status_code == 200, "the new one is loaded")


def test_unload_a_model_on_request_and_load_its_new_file(server: Server, repository: Path) -> None:
    pack(repository, 5)
    assert answer(call(server, "m5")) == [10.0]
    pack(repository, 50)
    (repository / "m50.tar.gz").rename(repository / "m5.tar.gz")
    assert answer(call(server, "m5")) == [10.0]
    assert server.ask("DELETE", "/models/m5").status_code == 200
    assert answer(call(server, "m5")) == [100.0]


def test_share_a_load_among_its_callers_and_go_on_after_they_left(
    server: Server, repository: Path
) -> None:
    make_model(repository / "held", 7, initialize="hold()", label="seven")
    with ThreadPoolExecutor(CALLERS) as threads:
        calls = [threads.submit(call, server, "held") for _ in range(CALLERS)]
        wait_until((repository / "held/1/held").exists, "it is being loaded")
        assert "held" in server.get("/models").json()["loading"]
        assert counted(server, "serve_models_loading") > 0
        assert answer(call(server, "m1")) == [2.0]
        assert "m_absent" not in loaded(server)
        expect_error(call(server, "m_absent"), 404, "model_not_found")
        (repository / "held/1/go").touch()
        assert [answer(each.result()) for each in calls] == [[14.0]] * CALLERS
    wait_until(lambda: server.says("loaded 'held' in", process="manager"), "the load is logged")
    wait_until(lambda: counted(server, "serve_models_loading") == 0, "no load is in progress")
    assert server.output().count("loaded 'held' in") == 1


def test_answer_100_names_at_once_of_which_90_do_not_exist(
    server: Server, repository: Path
) -> None:
    for number in range(100, 110):
        pack(repository, number)
    with ThreadPoolExecutor(100) as threads:
        replies = list(threads.map(lambda n: call(server, f"m{n}"), range(100, 200)))
    # at most a quarter of all slots wait for loads
    later = {200: "", 404: "model_not_found", 503: "model_not_ready"}
    assert all(reply.json().get("code", "") == later[reply.status_code] for reply in replies)
    assert {reply.status_code for reply in replies[:10]} <= {200, 503}
    assert {reply.status_code for reply in replies[10:]} <= {404, 503}
    for number in range(100, 200):
        status = 200 if number < 110 else 404
        wait_until(partial(_is_answered, server, f"m{number}", status), f"m{number} gets {status}")


def _is_answered(server: Server, name: str, status: int) -> bool:
    return call(server, name).status_code == status


def test_finish_a_load_after_the_manager_was_killed(server: Server, repository: Path) -> None:
    make_model(repository / "halfway", 7, initialize="hold()", label="seven")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call, server, "halfway")
        wait_until((repository / "halfway/1/held").exists, "it is being loaded")
        server.replace("manager")
        (repository / "halfway/1/go").touch()
        assert answer(waiting.result()) == [14.0]


def test_finish_an_unpacking_in_which_the_manager_was_killed(
    server: Server, repository: Path
) -> None:
    pack(repository, 8, **{"multiply/weights": "0" * 2**27})  # takes half a second to unpack
    unfinished = partial(server.run_dir.glob, "unpacked/.*")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call, server, "m8")
        wait_until(lambda: list(unfinished()), "it is being unpacked", pause=0.001)
        killed = server.pid("manager")
        server.kill(killed)
        assert list(unfinished())
        server.wait_replaced("manager", killed)
        assert answer(waiting.result()) == [16.0]
    assert not list(unfinished())


def test_answer_503_for_other_models_while_the_repository_is_away(
    server: Server, repository: Path
) -> None:
    pack(repository, 11)
    assert answer(call(server, "m1")) == [2.0]
    away = repository.rename(repository.with_name("away"))
    expect_error(call(server, "m11"), 503, "model_not_ready", "cannot be read")
    assert answer(call(server, "m1")) == [2.0]
    assert server.get("/models").json()["not_loaded"] == []
    away.rename(repository)
    wait_until(partial(_is_answered, server, "m11", 200), "it is looked up again")


def test_answer_for_all_60_loaded_models_after_tritonserver_was_killed(
    server: Server, repository: Path
) -> None:
    numbers = range(200, 260)
    for number in numbers:
        pack(repository, number)
    with ThreadPoolExecutor(CALLERS) as threads:
        list(threads.map(partial(call_until_answered, server), numbers))
        before = loaded(server)
        assert before >= {f"m{number}" for number in numbers}
        killed = server.pid("tritonserver")
        server.kill(killed)
        list(threads.map(partial(call_until_answered, server), numbers))
    server.wait_replaced("tritonserver", killed)
    wait_until(lambda: server.ping() == 200 and loaded(server) == before, "all are loaded again")


def call_until_answered(server: Server, number: int) -> None:
    """Call a model until it answers. Assert that all answers are right, and all errors are 503 or
    507."""

    def is_answered() -> bool:
        reply = call(server, f"m{number}")
        if reply.status_code == 200:
            assert answer(reply) == [2.0 * number]
        else:
            assert reply.status_code in (503, 507), reply.text
        return reply.status_code == 200

    wait_until(is_answered, f"m{number} answers")


def test_evict_the_least_recently_used_models(tmp_path: Path) -> None:
    for number in range(ARCHIVES):
        pack(tmp_path / "models", number)
    memory = {"SERVE_MODEL_MEMORY_SHARE": str(share_for(ROOM))}
    with on_demand(tmp_path, **memory) as server, ThreadPoolExecutor(CALLERS) as threads:

        def one(number: int) -> tuple[int, str]:
            name = number if number < ARCHIVES else number % HOT
            reply = call(server, f"m{name}")
            if reply.status_code == 200:
                assert answer(reply) == [2.0 * name]
                return 200, ""
            return reply.status_code, reply.json()["code"]

        outcomes = Counter(threads.map(one, range(2 * ARCHIVES)))
        allowed = {(200, ""), (503, "model_not_ready"), (507, "out_of_memory")}
        assert outcomes.keys() <= allowed, outcomes
        assert outcomes[200, ""] > ARCHIVES
        # if loads take less than a second, all models have been in use until now
        for number in reversed(range(ARCHIVES)):
            if counted(server, "serve_on_demand_evictions_total") > 0:
                break
            wait_until(partial(_is_answered, server, f"m{number}", 200), f"m{number} gets 200")
        assert counted(server, "serve_on_demand_evictions_total") > 0
        assert counted(server, "serve_on_demand_misses_total") >= ARCHIVES / 2
        assert len(loaded(server)) < ARCHIVES
