"""Downloads from a server of this machine's: verified, resumed, done once; and the hub, by a stand-in for its API."""

import hashlib
import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import transformers

from build_engines.errors import BuildError
from build_engines.weights.downloads import ARTIFACTS, Artifact, download, fetch
from tests.support.harness import PATIENCE, ROOT

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
Server = TypeVar("Server", bound=http.server.ThreadingHTTPServer)


class Site(http.server.ThreadingHTTPServer):
    """Serves CONTENT; `break_after` bytes the connection ends, `breaks` times. `requests` are the ranges asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.break_after, self.breaks, self.ranges_known = 0, 0, True
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        self.server.requests.append(asked)
        if self.path != "/file":
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges_known else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        body = CONTENT[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.breaks:
            self.server.breaks -= 1
            body = body[: self.server.break_after]
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site()) as server:
        yield server


def artifact(site: Site, sha256: str = SHA256, path: str = "/file") -> Artifact:
    return Artifact(site.url + path, sha256)


def test_a_file_is_fetched_once(site: Site, tmp_path: Path) -> None:
    for _ in range(2):
        assert download(artifact(site), tmp_path / "cache" / "file").read_bytes() == CONTENT
    assert site.requests == [""]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["file"]


def test_a_download_that_breaks_off_is_gone_on_with(site: Site, tmp_path: Path) -> None:
    site.break_after, site.breaks = 300_000, 2
    assert download(artifact(site), tmp_path / "file").read_bytes() == CONTENT
    assert site.requests == ["", "bytes=300000-", "bytes=600000-"]


def test_a_part_of_an_earlier_run_is_gone_on_with(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    assert download(artifact(site), tmp_path / "file").read_bytes() == CONTENT
    assert site.requests == ["bytes=1000-"]


def test_a_server_without_ranges_sends_all_again(site: Site, tmp_path: Path) -> None:
    site.ranges_known = False
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    assert download(artifact(site), tmp_path / "file").read_bytes() == CONTENT


def test_a_part_that_is_too_long_is_thrown_away(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT + b"more")
    assert download(artifact(site), tmp_path / "file").read_bytes() == CONTENT


def test_a_download_that_breaks_off_always_is_given_up_and_kept_for_the_next_run(site: Site, tmp_path: Path) -> None:
    site.break_after, site.breaks = 1000, 99
    with pytest.raises(BuildError, match="the connection broke off"):
        download(artifact(site), tmp_path / "file")
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:5000]
    assert not (tmp_path / "file").exists()


def test_a_file_with_another_hash_is_thrown_away(site: Site, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=f"SHA-256 {SHA256}, expected {'0' * 64}"):
        download(artifact(site, "0" * 64), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_cached_file_that_was_changed_is_not_taken(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"changed")
    with pytest.raises(BuildError, match="is not the file that it should be"):
        download(artifact(site), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"changed"


def test_a_missing_file_is_told_with_its_status(site: Site, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"/nowhere cannot be fetched \(HTTP 404\)"):
        download(artifact(site, path="/nowhere"), tmp_path / "file")


def test_without_a_network_it_says_what_to_fetch_from_where_and_where_to_lay_it(tmp_path: Path) -> None:
    nowhere = Artifact("http://127.0.0.1:9/file", SHA256)
    with pytest.raises(BuildError) as caught:
        download(nowhere, tmp_path / "file")
    for part in (nowhere.url, SHA256, str(tmp_path / "file"), "--weights PATH", "refused"):
        assert part in str(caught.value)


def test_a_file_that_was_laid_into_the_cache_needs_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARTIFACTS, "file", Artifact("http://127.0.0.1:9/file", SHA256))
    (cache / "downloads").mkdir()
    (cache / "downloads/file").write_bytes(CONTENT)
    assert fetch("file") == cache / "downloads" / "file"


def test_every_artifact_has_a_hash_and_an_encrypted_address() -> None:
    for each in ARTIFACTS.values():
        assert re.fullmatch("[0-9a-f]{64}", each.sha256)
        assert each.url.startswith("https://")


# --- the hub ---

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """What huggingface_hub asks of the hub to fetch a model's files; `damaged` files are sent with other bytes."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.files, self.damaged = files, ""


class HubHandler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def reply(self, body: bytes, **headers: str) -> None:
        self.send_response(200)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/someone/model/revision") or path == "/api/models/someone/model":
            siblings = [{"rfilename": name} for name in self.server.files]
            self.reply(json.dumps({"id": "someone/model", "sha": COMMIT, "siblings": siblings}).encode())
        elif path.startswith("/api/models/someone/model/tree"):
            self.reply(json.dumps([entry(name, data) for name, data in self.server.files.items()]).encode())
        elif path.startswith("/someone/model/resolve/"):
            name = path.removeprefix(f"/someone/model/resolve/{COMMIT}/")
            data = self.server.files[name]
            sent = data[::-1] if name == self.server.damaged else data
            self.reply(sent, ETag=f'"{entry(name, data)["oid"]}"', X_Repo_Commit=COMMIT)
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        found = [entry(name, data) for name, data in self.server.files.items() if name.rpartition("/")[2] in asked]
        self.reply(json.dumps(found).encode())

    def log_message(self, *_: Any) -> None:
        pass


def entry(name: str, data: bytes) -> dict[str, Any]:
    """A file in the hub's listing; large ones lie in LFS, known by their SHA-256."""
    oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    listed: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": oid}
    if name.endswith(".safetensors"):
        sha = hashlib.sha256(data).hexdigest()
        return listed | {"lfs": {"oid": sha, "size": len(data), "pointerSize": 134}}
    return listed


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=24,
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "checkpoint/vocab.txt").write_text("\n".join(words))
    files = {path.name: path.read_bytes() for path in (tmp_path / "checkpoint").iterdir()}
    with serving(Hub(files)) as server:
        yield server


def build_from_hub(port: int, tmp_path: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    environ = {
        "PATH": "/usr/bin:/bin",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": f"http://127.0.0.1:{port}",
        "BUILD_ENGINES_CACHE": str(tmp_path / "cache"),
        "HF_HUB_DISABLE_XET": "1",
    } | variables
    command = [
        sys.executable,
        "-m",
        "build_engines",
        "build",
        "words",
        "--weights",
        "someone/model",
        "--out",
        str(tmp_path / "models"),
    ]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environ, timeout=PATIENCE)


def test_a_model_of_the_hub_is_built_and_again_without_a_network(hub: Hub, tmp_path: Path) -> None:
    done = build_from_hub(hub.server_port, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "built" in done.stdout
    assert (tmp_path / "models/words/1/model.onnx").is_file()
    again = build_from_hub(9, tmp_path, HF_HUB_OFFLINE="1")
    assert (again.returncode, "is up to date" in again.stdout) == (0, True), again.stderr


def test_a_damaged_file_of_the_hub_is_not_taken(hub: Hub, tmp_path: Path) -> None:
    hub.damaged = "model.safetensors"
    done = build_from_hub(hub.server_port, tmp_path)
    assert done.returncode == 1
    assert "model.safetensors of someone/model is damaged" in done.stderr
    hub.damaged = ""
    assert build_from_hub(hub.server_port, tmp_path).returncode == 0


def test_without_the_hub_it_says_how_to_bring_the_model(tmp_path: Path) -> None:
    done = build_from_hub(9, tmp_path)
    assert done.returncode == 1
    assert "hf download someone/model --local-dir FOLDER" in done.stderr
    assert "--weights FOLDER" in done.stderr
    assert "Traceback" not in done.stderr
