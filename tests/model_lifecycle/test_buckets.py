"""Tests on-demand mode with models in a bucket: moto's S3 over HTTP, and a real Triton."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.model_lifecycle.test_on_demand import answer, call, counted, on_demand, pack
from tests.support.archives import files_of
from tests.support.harness import Server, expect_error, wait_until
from tests.support.object_store import BUCKET, KEY, SECRET, ObjectStore, object_store

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


@pytest.fixture(scope="module")
def server(store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    variables = {**store.environment, "SERVE_MODEL_REPOSITORY": f"s3://{BUCKET}/of"}
    with on_demand(tmp_path_factory.mktemp("bucket"), **variables) as running:
        yield running
        assert SECRET not in running.output() and KEY not in running.output()


@pytest.fixture(autouse=True)
def no_faults(store: ObjectStore) -> Iterator[None]:
    yield
    store.fault = lambda _: False
    store.released.set()


def put(store: ObjectStore, folder: Path, number: int, **more: str) -> None:
    """Put the archive `mNUMBER`, whose model multiplies by its number, into the bucket."""
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
        assert server.get("/models").json()["loading"] == ["m6"]
        assert counted(server, "serve_models_loading") == 1
        store.fault = lambda _: False
        server.replace("manager")
        assert answer(waiting.result()) == [12.0]
    assert not [*unfinished()]


def test_say_that_a_bucket_hangs_and_list_loaded_models_meanwhile(
    store: ObjectStore, server: Server, tmp_path: Path
) -> None:
    put(store, tmp_path, 1)
    assert answer(call(server, "m1")) == [2.0]
    store.released.clear()
    store.fault = store.hang
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(call, server, "m2")
        listed = server.get("/models").json()
        assert "m1" in [model["name"] for model in listed["models"]]
        assert "not_loaded" not in listed
        expect_error(waiting.result(), 503, "model_not_ready", "it answers too slowly")
        assert answer(call(server, "m1")) == [2.0]
