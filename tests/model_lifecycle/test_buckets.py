"""On-demand mode with models in a bucket: moto's S3 over HTTP, the real Triton."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.model_lifecycle.test_on_demand import answer, call, loaded, on_demand, pack
from tests.support.archives import files_of
from tests.support.harness import Server, expect_error, wait_until
from tests.support.object_store import BUCKET, KEY, SECRET, ObjectStore, object_store

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


@pytest.fixture(scope="module")
def variables(store: ObjectStore) -> dict[str, str]:
    return {**store.environment, "SERVE_MODEL_REPOSITORY": f"s3://{BUCKET}/of"}


@pytest.fixture(scope="module")
def server(
    store: ObjectStore, variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with on_demand(tmp_path_factory.mktemp("bucket"), **variables) as running:
        yield running
        assert SECRET not in running.output() and KEY not in running.output()


@pytest.fixture(autouse=True)
def no_faults(store: ObjectStore) -> Iterator[None]:
    yield
    store.fault = lambda _: False
    store.released.set()


def put(store: ObjectStore, folder: Path, number: int, **more: str) -> None:
    """Put the archive `mNUMBER` of a model that multiplies by its number."""
    pack(folder, number, **more)
    store.put(f"of/m{number}.tar.gz", (folder / f"m{number}.tar.gz").read_bytes())


def test_load_an_archive_and_a_model_folder(
    store: ObjectStore, server: Server, tmp_path: Path
) -> None:
    put(store, tmp_path, 1)
    for name, text in files_of(3).items():
        store.put(f"of/team/{name}", text.encode())
    assert answer(call(server, "m1")) == [2.0]
    assert answer(call(server, "m1.tar.gz")) == [2.0]
    assert answer(call(server, "team/multiply")) == [6.0]
    expect_error(call(server, "absent"), 404, "model_not_found")
    assert server.get("/models").json()["not_loaded"] == []


def test_load_the_new_object_after_an_unload(
    store: ObjectStore, server: Server, tmp_path: Path
) -> None:
    put(store, tmp_path, 2)
    assert answer(call(server, "m2")) == [4.0]
    pack(tmp_path, 20)
    store.put("of/m2.tar.gz", (tmp_path / "m20.tar.gz").read_bytes())
    assert server.ask("DELETE", "/models/m2").status_code == 200
    assert answer(call(server, "m2")) == [40.0]


def test_say_why_a_model_cannot_be_looked_up_and_answer_for_loaded_ones(
    store: ObjectStore, server: Server, tmp_path: Path
) -> None:
    put(store, tmp_path, 1)
    put(store, tmp_path, 4)
    assert answer(call(server, "m1")) == [2.0]
    store.fault = store.forbid
    expect_error(call(server, "m4"), 503, "model_not_ready", "access is forbidden")
    assert answer(call(server, "m1")) == [2.0]
    assert server.ping() == 200
    store.fault = lambda _: False
    wait_until(lambda: call(server, "m4").status_code == 200, "it is looked up again")


def test_load_a_model_after_its_fetch_was_cut_off(
    store: ObjectStore, server: Server, tmp_path: Path
) -> None:
    put(store, tmp_path, 5)
    store.fault = store.cut_off
    expect_error(call(server, "m5"), 503, "model_not_ready", "the connection was cut off")
    store.fault = lambda _: False
    wait_until(lambda: call(server, "m5").status_code == 200, "it is fetched again")


def test_say_that_a_bucket_hangs_and_list_loaded_models_meanwhile(
    store: ObjectStore, variables: dict[str, str], tmp_path: Path
) -> None:
    put(store, tmp_path, 1)
    with on_demand(tmp_path, **variables) as server, ThreadPoolExecutor(1) as threads:
        assert answer(call(server, "m1")) == [2.0]
        store.released.clear()
        store.fault = store.hang
        waiting = threads.submit(call, server, "m2")
        listed = server.get("/models").json()
        assert [model["name"] for model in listed["models"]] == ["m1"]
        assert "not_loaded" not in listed
        expect_error(waiting.result(), 503, "model_not_ready", "it answers too slowly")
        assert answer(call(server, "m1")) == [2.0]


def test_finish_a_fetch_in_which_the_manager_was_killed(
    store: ObjectStore, server: Server, tmp_path: Path
) -> None:
    put(store, tmp_path, 6)
    store.released.clear()
    store.fault = store.hang_in_the_middle
    unfinished = partial(server.run_dir.glob, "unpacked/.*/*.tar.gz")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call, server, "m6")
        wait_until(lambda: [*unfinished()], "it is being fetched")
        store.fault = lambda _: False
        server.replace("manager")
        assert answer(waiting.result()) == [12.0]
    assert not [*unfinished()]


def test_fetch_nothing_again_after_a_restart_of_the_container(
    store: ObjectStore, variables: dict[str, str], tmp_path: Path
) -> None:
    put(store, tmp_path, 7)
    store.requests.clear()
    for _ in range(2):
        with on_demand(tmp_path, **variables) as server:
            assert answer(call(server, "m7")) == [14.0]
            assert loaded(server) == {"m7"}
    assert len(store.gets()) == 1
