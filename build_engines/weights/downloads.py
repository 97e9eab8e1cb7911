"""Weights from the network: one table of files, one download that is verified, resumed and done once.

name -> CACHE/downloads/NAME (there and right: nothing is fetched) -> NAME.part (resumed) -> SHA-256 -> NAME
"""

import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.progress import of_bytes
from build_engines.weights.digests import digest

CHUNK = 1 << 20
ATTEMPTS = 5  # of a download that breaks off
TIMEOUT = 30  # seconds without a byte
_YOLOV5 = "https://github.com/ultralytics/yolov5/releases/download/v7.0"
_BERT = "https://huggingface.co/google-bert/bert-base-uncased/resolve/main"


@dataclass(frozen=True)
class Artifact:
    """A file of the network: where it is and its SHA-256; `licence` where one binds those who use it."""

    url: str
    sha256: str
    licence: str = ""


ARTIFACTS = {
    "yolov5n.pt": Artifact(
        f"{_YOLOV5}/yolov5n.pt", "4f180cf23ba0717ada0badd6c685026d73d48f184d00fc159c2641284b2ac0a3", "AGPL-3.0"
    ),
    "yolov5s.pt": Artifact(
        f"{_YOLOV5}/yolov5s.pt", "8b3b748c1e592ddd8868022e8732fde20025197328490623cc16c6f24d0782ee", "AGPL-3.0"
    ),
    "yolov5m.pt": Artifact(
        f"{_YOLOV5}/yolov5m.pt", "61d933360ba5a7733a36764996c800287d973889d875227f5beedd2473a97a56", "AGPL-3.0"
    ),
    "yolov5l.pt": Artifact(
        f"{_YOLOV5}/yolov5l.pt", "2f603b7354c25454d1270663a14d8ddc1eea98e5eebc1d84ce0c6e3150fa155f", "AGPL-3.0"
    ),
    "yolov5x.pt": Artifact(
        f"{_YOLOV5}/yolov5x.pt", "9f27a794fa0308e2606f90565164571d6f0a0ba18a3ce2e5e5d323b71c157859", "AGPL-3.0"
    ),
    "bert-base-uncased.safetensors": Artifact(
        f"{_BERT}/model.safetensors", "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3"
    ),
    "bert-base-uncased-vocab.txt": Artifact(
        f"{_BERT}/vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
    ),
}


def cache_folder() -> Path:
    """$BUILD_ENGINES_CACHE, else triton-multi-model in the user's cache folder."""
    if folder := os.environ.get("BUILD_ENGINES_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triton-multi-model"


def fetch(name: str) -> Path:
    """The verified file of ARTIFACTS; fetched when it is not in the cache. BuildError says where to put it by hand."""
    return download(ARTIFACTS[name], cache_folder() / "downloads" / name)


def download(artifact: Artifact, target: Path) -> Path:
    """The artifact at `target`, verified; a download that broke off is resumed."""
    if target.is_file():
        if digest(target) == artifact.sha256:
            return target
        raise BuildError(f"{target} is not the file that it should be (SHA-256 {artifact.sha256}); remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    try:
        _transfer(artifact.url, part)
    except (OSError, HTTPException) as err:
        raise BuildError(
            f"{artifact.url} cannot be fetched ({_reason(err)}). Fetch it on a machine that can, and lay it at "
            f"{target} (SHA-256 {artifact.sha256}), or name a file of your own with --weights PATH"
        ) from err
    if (found := digest(part)) != artifact.sha256:
        part.unlink()
        raise BuildError(f"{artifact.url} has SHA-256 {found}, expected {artifact.sha256}; it was thrown away")
    part.replace(target)
    return target


def _transfer(url: str, part: Path) -> None:
    """Downloads all of `url` into `part`; resumes when the connection breaks off."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if _receive(url, part):
                return
            reason: Exception = ConnectionError("the connection broke off")
        except urllib.error.HTTPError as err:
            if err.code != 416:  # of a part that is longer than the file
                raise
            part.unlink(missing_ok=True)
            reason = err
        except (ConnectionError, TimeoutError, HTTPException) as err:
            reason = err
        if attempt == ATTEMPTS:
            raise reason


def _receive(url: str, part: Path) -> bool:
    """Appends what is missing; returns whether the file is complete now."""
    there = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={there}-"} if there else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
        resumed = reply.status == 206
        length = int(reply.headers.get("Content-Length") or 0)
        total = length + (there if resumed else 0) if length else 0
        _save(reply, part, "ab" if resumed else "wb", total)
    return not total or part.stat().st_size >= total


def _save(reply: object, part: Path, mode: str, total: int) -> None:
    start = part.stat().st_size if mode == "ab" else 0
    with part.open(mode) as file, of_bytes(part.name, total, start) as bar:
        while chunk := reply.read(CHUNK):  # type: ignore[attr-defined]
            file.write(chunk)
            bar.update(len(chunk))


def _reason(err: Exception) -> str:
    if isinstance(err, urllib.error.HTTPError):
        return f"HTTP {err.code}"
    return str(getattr(err, "reason", None) or err)
