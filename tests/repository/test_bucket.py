"""Tests finding and fetching models in a bucket, over HTTP from moto's S3."""

import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving.repository.bucket import MOST_OBJECTS, PAGE, BucketSource
from serving.repository.cache import Cache
from serving.repository.source import Found, Unreachable
from serving.repository.unpacking import BadArchive
from tests.repository.test_unpacking import make_tar
from tests.support.harness import free_port
from tests.support.object_store import BUCKET, KEY, SECRET, Exchange, ObjectStore, object_store

pytestmark = pytest.mark.stack

CONFIG = b'backend: "python"'
WEIGHTS = os.urandom(3 * 2**20)  # large enough for several pieces


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    server.empty()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


Open = Callable[..., BucketSource]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    def bucket(path: str = "", most: int = 2**30, silent_seconds: float = 60.0) -> BucketSource:
        cache = Cache(tmp_path / "cache", most, list)
        return BucketSource(f"s3://{BUCKET}{path}", cache, silent_seconds)

    return bucket


def put_folder(store: ObjectStore, name: str) -> None:
    store.put(f"{name}/config.pbtxt", CONFIG)
    store.put(f"{name}/1/model.py", WEIGHTS)


def put_archive(store: ObjectStore, folder: Path, name: str, size: int = 0) -> None:
    path = make_tar(folder / "archive", **{"config.pbtxt": size, "1/model.py": 3})
    store.put(f"{name}.tar.gz", path.read_bytes())


def find(bucket: BucketSource, name: str) -> Found:
    found = bucket.find(name)
    assert found
    return found


def fetch(bucket: BucketSource, name: str) -> Path:
    with bucket.archive(find(bucket, name)) as archive:
        return archive.folder


def test_fetch_a_model_folder(store: ObjectStore, opened: Open) -> None:
    put_folder(store, "of/team/net")
    # the objects that a console creates for folders
    for mark in ("of/team/net/", "of/team/net/1/"):
        store.put(mark)
    store.put("of/team/net2/config.pbtxt", b"of another model")
    folder = fetch(opened("/of"), "team/net")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {"config.pbtxt", "1/model.py"}
    assert (folder / "1/model.py").read_bytes() == WEIGHTS


def test_create_a_folder_for_the_marker_of_an_empty_folder(
    store: ObjectStore, opened: Open
) -> None:
    store.put("net/config.pbtxt", CONFIG)
    store.put("net/1/")
    store.put("net/empty")
    folder = fetch(opened(), "net")
    assert (folder / "1").is_dir()
    assert (folder / "empty").read_bytes() == b""


def test_fetch_an_archive_and_keep_only_its_files(
    store: ObjectStore, opened: Open, tmp_path: Path
) -> None:
    put_archive(store, tmp_path, "team/a b")
    folder = fetch(opened(), "team/a b")
    assert (folder / "1/model.py").read_bytes() == bytes(3)
    assert [folder] == list((tmp_path / "cache").iterdir())


def test_prefer_a_folder_to_an_archive(store: ObjectStore, opened: Open, tmp_path: Path) -> None:
    put_archive(store, tmp_path, "net")
    put_folder(store, "net")
    assert find(opened(), "net").url == f"s3://{BUCKET}/net"


def test_fetch_nothing_again_after_a_restart(
    store: ObjectStore, opened: Open, tmp_path: Path
) -> None:
    put_folder(store, "net")
    put_archive(store, tmp_path, "a")
    for _ in range(2):
        bucket = opened()
        fetch(bucket, "net")
        fetch(bucket, "a")
    assert len(store.gets()) == 3


def test_fetch_again_what_has_changed(store: ObjectStore, opened: Open, tmp_path: Path) -> None:
    bucket = opened()
    put_folder(store, "net")
    put_archive(store, tmp_path, "a")
    before = [find(bucket, name).signature for name in ("net", "a")]
    store.put("net/1/model.py", b"new")
    put_archive(store, tmp_path, "a", size=1)
    after = [find(bucket, name).signature for name in ("net", "a")]
    assert not set(before) & set(after)
    assert (fetch(bucket, "net") / "1/model.py").read_bytes() == b"new"


NAMES = ["absent", "net/1", "ne", "..", "net/..", ".net", "é", "a%2Fb", "m?x#y", "*", "n" * 2000]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_find_no_model_of_another_name(store: ObjectStore, opened: Open, name: str) -> None:
    put_folder(store, "net")
    bucket = opened()
    find(bucket, "net")
    store.requests.clear()
    assert bucket.find(name) is None
    assert len(store.requests) <= 2
    assert not any(request.startswith("GET") for request in store.requests)


def test_find_no_model_whose_key_is_longer_than_buckets_allow(
    store: ObjectStore, opened: Open
) -> None:
    assert opened().find("é" * 512) is None
    assert store.requests == []


@pytest.mark.parametrize("name", ["é", "a%2Fb", "m?x#y", "*", "+ &"], ids=ascii)
def test_find_a_model_with_an_unusual_name(
    store: ObjectStore, opened: Open, tmp_path: Path, name: str
) -> None:
    put_archive(store, tmp_path, name)
    put_folder(store, f"folder/{name}")
    bucket = opened()
    assert (fetch(bucket, name) / "1/model.py").is_file()
    assert (fetch(bucket, f"folder/{name}") / "1/model.py").is_file()
    assert bucket.sizes().keys() == {name, f"folder/{name}"}


def test_list_models_but_no_hidden_ones(store: ObjectStore, opened: Open, tmp_path: Path) -> None:
    put_folder(store, "team/net")
    put_folder(store, ".hidden")
    put_archive(store, tmp_path, "a")
    store.put("readme.txt", b"x")
    bucket = opened()
    archive = store.client.head_object(Bucket=BUCKET, Key="a.tar.gz")["ContentLength"]
    sizes = {"a": archive, "team/net": len(CONFIG) + len(WEIGHTS)}
    assert bucket.sizes() == sizes
    store.requests.clear()
    assert bucket.sizes() == sizes
    assert store.requests == []


def test_bound_the_requests_for_a_bucket_of_many_objects(store: ObjectStore, opened: Open) -> None:
    for number in range(MOST_OBJECTS + 2 * PAGE):
        store.put_quickly(f"team/m{number}.tar.gz")
    bucket = opened()
    assert len(bucket.sizes()) == 1_000
    assert len(store.requests) == MOST_OBJECTS / PAGE


def test_fetch_a_folder_whose_list_has_several_pages(
    store: ObjectStore, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_folder(store, "net")
    for number in range(10):
        store.put(f"net/a/{number}")
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "4")
    folder = fetch(opened(), "net")
    assert len(list((folder / "a").iterdir())) == 10
    assert (folder / "1/model.py").read_bytes() == WEIGHTS


def test_refuse_a_folder_of_too_many_files(store: ObjectStore, opened: Open) -> None:
    put_folder(store, "net")
    for number in range(MOST_OBJECTS):
        store.put_quickly(f"net/a/{number}")  # this file is listed before config.pbtxt
    with pytest.raises(BadArchive, match=r"make an archive s3://models/net\.tar\.gz"):
        fetch(opened(), "net")
    assert store.gets() == []


def test_fetch_no_more_bytes_than_the_cache_may_have(
    store: ObjectStore, opened: Open, tmp_path: Path
) -> None:
    put_folder(store, "net")
    with pytest.raises(OSError, match="SERVE_UNPACKED_MB"):
        fetch(opened(most=len(WEIGHTS)), "net")
    assert list((tmp_path / "cache").iterdir()) == []


def test_remove_nothing_for_a_folder_that_is_larger_than_the_cache(
    store: ObjectStore, opened: Open
) -> None:
    for name in ("small", "net"):
        put_folder(store, name)
    store.put("net/2/model.py", WEIGHTS)
    bucket = opened(most=3 * len(WEIGHTS) // 2)
    small = fetch(bucket, "small")
    with pytest.raises(OSError, match="SERVE_UNPACKED_MB"):
        fetch(bucket, "net")
    assert small.is_dir()


def test_count_an_archive_itself_only_until_it_is_unpacked(
    store: ObjectStore, opened: Open, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        path = make_tar(tmp_path / name, **{"config.pbtxt": 0, "1/model.py": 0})
        path.write_bytes(path.read_bytes() + WEIGHTS)  # tar ignores the additional bytes
        store.put(f"{name}.tar.gz", path.read_bytes())
    bucket = opened(most=len(WEIGHTS) + 2**16)
    folders = [fetch(bucket, name) for name in ("a", "b")]
    assert all(folder.is_dir() for folder in folders)


def test_fetch_models_from_google_and_azure(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google's XML API is the same as S3's. In Azure's API, the list differs."""
    put_folder(store, "of/net")
    put_archive(store, tmp_path, "of/a")
    monkeypatch.setenv("GOOGLE_BASE_URL", store.url)
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", store.url)
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    store.fault = store.list_as_azure
    for scheme in ("gs", "az"):
        bucket = BucketSource(f"{scheme}://{BUCKET}/of", Cache(tmp_path / scheme, 2**30, list))
        assert [*bucket.sizes()] == ["a", "net"]
        assert bucket.find("absent") is None
        assert (fetch(bucket, "net") / "1/model.py").read_bytes() == WEIGHTS
        assert (fetch(bucket, "a") / "1/model.py").read_bytes() == bytes(3)


def message(bucket: BucketSource, name: str = "net") -> str:
    with pytest.raises(Unreachable) as caught:
        fetch(bucket, name)
    trace = "".join(traceback.format_exception(caught.value))
    assert SECRET not in trace and KEY not in trace
    return str(caught.value)


def test_say_that_access_is_forbidden(store: ObjectStore, opened: Open) -> None:
    store.fault = store.forbid
    assert "allow the container's role to list the bucket" in message(opened())
    put_folder(store, "net")
    store.fault = lambda exchange: exchange.is_object() and store.forbid(exchange)
    assert "allow the container's role to list the bucket" in message(opened())


REPLIES = {
    403: ("", "access is forbidden"),
    301: ("", "it is in another region"),
    429: ("", "it is overloaded"),
    418: ("", "check the settings"),
    400: ("<Error><Code>ExpiredToken</Code></Error>", "access is forbidden"),
    499: ("<Error><Code>AuthorizationHeaderMalformed</Code></Error>", "it is in another region"),
}
WORDS = [
    "net",
    "http:/169.254.1.1/computeMetadata/x",
    "status code: 401 status: 403,",
    '"<Code>AuthorizationHeaderMalformed<',
    "kind: Timeout, InvalidPath {",
]


@pytest.mark.parametrize("status", REPLIES)
@pytest.mark.parametrize("word", WORDS, ids=ascii)
def test_give_the_same_reason_whatever_the_name_is(
    store: ObjectStore, opened: Open, status: int, word: str
) -> None:
    bucket = opened()
    body, reason = REPLIES[status]

    def refuse(exchange: Exchange) -> bool:
        exchange.reply(status, body.encode())
        return True

    store.fault = refuse
    assert reason in message(bucket, word)  # the reason for a failed LIST request
    store.fault = lambda _: False
    assert bucket.find(word) is None
    store.fault = refuse
    reason_of_head = "check the settings" if body else reason
    assert reason_of_head in message(bucket, word)


def test_notice_a_change_on_a_server_that_sends_no_e_tags(
    store: ObjectStore, opened: Open, tmp_path: Path
) -> None:
    bucket = opened()
    store.fault = store.send_no_e_tag
    put_archive(store, tmp_path, "a")
    before = find(bucket, "a")
    put_archive(store, tmp_path, "a", size=2000)
    assert find(bucket, "a").signature != before.signature
    assert (fetch(bucket, "a") / "config.pbtxt").stat().st_size == 2000
    with pytest.raises(BadArchive, match="was changed"), bucket.archive(before):
        pass


def test_say_that_a_bucket_does_not_exist(store: ObjectStore, tmp_path: Path, opened: Open) -> None:
    bucket = BucketSource("s3://absent", Cache(tmp_path / "cache", 1, list))
    assert "there is no such bucket" in message(bucket)


@pytest.mark.parametrize("key", ["net//x", "net/./x", "net/../../x", "net/\1"], ids=ascii)
def test_fetch_no_key_that_is_not_a_path(store: ObjectStore, opened: Open, key: str) -> None:
    put_folder(store, "net")
    put_folder(store, "other")
    store.put_quickly(key)
    bucket = opened()
    assert "a key in it has an empty part" in message(bucket)
    assert (fetch(bucket, "other") / "1/model.py").is_file()


def test_say_that_an_account_is_missing(tmp_path: Path) -> None:
    bucket = BucketSource(f"az://{BUCKET}", Cache(tmp_path / "cache", 1, list))
    assert "AZURE_STORAGE_ACCOUNT_NAME is not set" in message(bucket)


def test_report_that_the_server_cannot_be_reached(
    store: ObjectStore, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    assert "it cannot be reached" in message(opened())


def test_say_that_the_server_does_not_answer(store: ObjectStore, opened: Open) -> None:
    store.fault = store.hang
    assert "it answers too slowly" in message(opened(silent_seconds=0.5))


@pytest.mark.parametrize("model", ["net", "a"])
def test_keep_nothing_of_a_model_that_cannot_be_fetched_completely(
    store: ObjectStore, opened: Open, tmp_path: Path, model: str
) -> None:
    put_folder(store, "net")
    store.put("a.tar.gz", WEIGHTS)
    store.fault = store.cut_off
    assert "the connection was cut off" in message(opened(), model)
    store.fault = store.hang_in_the_middle
    assert "it answers too slowly" in message(opened(silent_seconds=0.5), model)
    assert list((tmp_path / "cache").iterdir()) == []


def once(fault: Callable[[Exchange], bool]) -> Callable[[Exchange], bool]:
    """Cause the fault once, and not again."""
    struck: list[bool] = []

    def strike(exchange: Exchange) -> bool:
        if not struck and fault(exchange):
            struck.append(True)
            return True
        return False

    return strike


def test_go_on_after_a_connection_was_cut_off(store: ObjectStore, opened: Open) -> None:
    put_folder(store, "net")
    bucket = opened()
    found = find(bucket, "net")
    pending = [store.cut_off]
    store.fault = lambda exchange: (
        exchange.is_object() and bool(pending) and pending.pop()(exchange)
    )
    with bucket.archive(found) as archive:
        assert (archive.folder / "1/model.py").read_bytes() == WEIGHTS
    assert pending == []


@pytest.mark.parametrize("when", ["before", "in the middle"])
@pytest.mark.parametrize("key", ["net/1/model.py", "a.tar.gz"])
def test_keep_nothing_of_a_model_that_changes_while_it_is_fetched(
    store: ObjectStore, opened: Open, tmp_path: Path, key: str, when: str
) -> None:
    put_folder(store, "net")
    store.put("a.tar.gz", WEIGHTS)

    def change(exchange: Exchange) -> bool:
        if not exchange.is_object() or key.partition("/")[2] not in exchange.path:
            return False
        if when == "in the middle":
            store.cut_off(exchange)
        store.put(key, b"new")
        return when == "in the middle"

    store.fault = once(change)
    with pytest.raises((BadArchive, Unreachable)):
        fetch(opened(), key.split("/")[0].removesuffix(".tar.gz"))
    assert list((tmp_path / "cache").iterdir()) == []


def test_refuse_an_archive_with_entries_outside_of_it(
    store: ObjectStore, opened: Open, tmp_path: Path
) -> None:
    store.put("a.tar.gz", make_tar(tmp_path / "tar", **{"../outside": 1}).read_bytes())
    with pytest.raises(BadArchive, match="cannot be unpacked"):
        fetch(opened(), "a")
