"""Reads on-demand models from a bucket: Amazon S3, Google Cloud Storage, Azure Blob Storage, or a
server that is compatible with one of their APIs.

    NAME/config.pbtxt, NAME/1/model.onnx, …    a model folder
    NAME.tar.gz                                an archive

A model is fetched into the cache (cache.py). Only the model manager imports this module, and only
if the model repository is a bucket.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from serving.host.files import digest
from serving.repository.cache import Cache
from serving.repository.layout import CONFIG
from serving.repository.source import (
    ARCHIVE,
    MOST_LISTED,
    Found,
    Source,
    Unreachable,
    may_be_found,
    plain_name,
)
from serving.repository.unpacking import BadArchive, unpack

SILENT_SECONDS = 5.0  # a request is sent again if no byte arrives for this long
HTTP_OPTIONS = {
    "timeout": timedelta(hours=1),  # for fetching a whole object
    "allow_http": True,  # needed if the URL of an endpoint begins with http://
}
RETRIES = {"max_retries": 2, "retry_timeout": timedelta(hours=1)}
PAGE = 1_000  # objects that one request lists
MOST_OBJECTS = 10 * PAGE  # the maximum number of objects listed; a model folder must have fewer
LIST_SECONDS = 30.0  # seconds for which a list of models is used before it is read again
PIECE = 2**20  # the minimum size in bytes of the pieces in which an object is downloaded
# The maximum size in bytes of the URL of an object that is looked up. S3 answers 400 if the key,
# which is a part of the URL, is longer than that.
LONGEST_URL = 1024
# The reasons to show instead of obstore's error messages, which quote URLs and replies that may
# contain credentials. The keys are patterns for the beginning of a line in the message; the first
# one that matches counts. Callers cannot influence how a line begins.
REASONS = {
    r"https?://(169\.254\.|[^/]+/computeMetadata/)": "no credentials were found: set them, or give "
    "it a role",
    'status: 40[13],|"<.*<Code>(Expired|Invalid)Token<': "access is forbidden: allow the "
    "container's role to list the bucket and read its objects, or correct the credentials",
    "status: 404,": "there is no such bucket",
    'inner: BareRedirect|"<.*<Code>AuthorizationHeaderMalformed<': "it is in another region: set "
    "AWS_REGION",
    "InvalidPath {": "a key in it has an empty part, '.', '..' or a control character: rename it",
    "source: MissingAccount": "AZURE_STORAGE_ACCOUNT_NAME is not set",
    "kind: Timeout": "it answers too slowly",
    "kind: Connect": "it cannot be reached",
    "kind: Body": "the connection was cut off",
    "status: (429|5..),": "it is overloaded, or has an internal error",
}
OTHER_REASON = "check the settings and credentials (docs/on-demand.md)"


class BucketSource(Source):
    """The models in the bucket at `url`, which may include a path. obstore takes the credentials
    from the environment, or else asks the cloud for those of the container's role."""

    def __init__(self, url: str, cache: Cache, silent_seconds: float = SILENT_SECONDS) -> None:
        super().__init__(cache)
        self._url = url.rstrip("/")
        self._silent = timedelta(seconds=silent_seconds)
        self._bucket_exists = False
        self._sizes: dict[str, int | None] = {}
        self._listed_at = -LIST_SECONDS

    @cached_property
    def _store(self) -> Any:
        """Return obstore's client of the bucket. Raise obstore's error if a setting is missing."""
        options = {**HTTP_OPTIONS, "connect_timeout": self._silent, "read_timeout": self._silent}
        return from_url(self._url, client_options=options, retry_config=RETRIES)

    def find(self, name: str) -> Found | None:
        url = f"{self._url}/{name}"
        longest_url = f"{url}/{CONFIG}"  # the archive's URL is shorter
        if not may_be_found(name) or len(longest_url.encode()) > LONGEST_URL:
            return None
        with self._translated_errors():
            self._check_bucket()
            if self._head(f"{name}/{CONFIG}"):
                return Found(name, url, _signature(self._objects(name)))
            if archive := self._head(name + ARCHIVE):
                return Found(name, url + ARCHIVE, _signature([archive]))
        return None

    def sizes(self) -> dict[str, int | None]:
        now = time.monotonic()
        if now > self._listed_at + LIST_SECONDS:
            self._listed_at = now  # set first, so that a failed listing is not repeated at once
            self._sizes = self._list_sizes()
        return self._sizes

    def _list_sizes(self) -> dict[str, int | None]:
        """Return what `sizes` returns, for the first MOST_OBJECTS objects in the bucket. A folder's
        size is the sum of its objects' sizes."""
        with self._translated_errors():
            objects = {entry["path"]: entry["size"] for entry in self._objects()}
        archives = {plain_name(path): objects[path] for path in objects if path.endswith(ARCHIVE)}
        configs = [path for path in objects if path.endswith(f"/{CONFIG}")]
        folders = {path.removesuffix(f"/{CONFIG}"): 0 for path in configs}
        for path, size in objects.items():
            for parent in PurePosixPath(path).parents:
                if str(parent) in folders:
                    folders[str(parent)] += size
        sizes = {**archives, **folders}  # if names are equal, `find` prefers the folder too
        names = sorted(filter(may_be_found, sizes))
        return {name: sizes[name] for name in names[:MOST_LISTED]}

    def _check_bucket(self) -> None:
        """Raise obstore's error if the bucket does not exist or cannot be listed. Do nothing after
        the first success. (A HEAD request does not say whether the bucket or the object is
        missing.)"""
        if not self._bucket_exists:
            pages = obstore.list(self._store, CONFIG)  # CONFIG is not a folder, so this is quick
            next(iter(pages), None)
            self._bucket_exists = True

    def _head(self, path: str) -> Any:
        """Return the metadata of the object at `path`, or None if there is no such object."""
        try:
            return obstore.head(self._store, path)
        except FileNotFoundError:
            return None

    def _objects(self, folder: str | None = None) -> list[Any]:
        """Return the first MOST_OBJECTS objects in the folder, or in the whole model repository if
        `folder` is None."""
        pages = obstore.list(self._store, folder, chunk_size=PAGE)
        return list(islice(chain.from_iterable(pages), MOST_OBJECTS))

    def write(self, found: Found, folder: Path, take: Callable[[int], None]) -> None:
        fetch = self._fetch_archive if found.url.endswith(ARCHIVE) else self._fetch_folder
        fetch(found, folder, take)

    def _fetch_archive(self, found: Found, folder: Path, take: Callable[[int], None]) -> None:
        file = folder.with_name(Path(found.url).name)  # BadArchive quotes this name
        size = self._fetch(found.name + ARCHIVE, file, take)
        unpack(file, folder, take)
        file.unlink()
        take(-size)

    def _fetch_folder(self, found: Found, folder: Path, take: Callable[[int], None]) -> None:
        with self._translated_errors():
            objects = self._objects(found.name)
        if len(objects) >= MOST_OBJECTS:
            raise BadArchive(
                f"{found.url} has {MOST_OBJECTS} files or more: make an archive "
                f"{found.url}{ARCHIVE}"
            )
        take(sum([entry["size"] for entry in objects]))
        for entry in objects:
            path = entry["path"]
            file = folder / PurePosixPath(path).relative_to(found.name)
            # An empty object whose key ends with "/" stands for a folder. obstore removes the "/",
            # so there is no object with the key that is left.
            with self._translated_errors():
                is_folder = entry["size"] == 0 and not self._head(path)
            if is_folder:
                file.mkdir(parents=True, exist_ok=True)
            else:
                self._fetch(path, file)

    def _fetch(self, path: str, file: Path, take: Callable[[int], object] = int) -> int:
        """Fetch an object into a new file. Before writing, call `take` (by default a function that
        does nothing) with its size. Return the size."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with self._translated_errors(), file.open("xb") as opened:
            reply = obstore.get(self._store, path)
            size: int = reply.meta["size"]
            take(size)
            for piece in reply.stream(PIECE):
                opened.write(piece)
        return size

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise Unreachable instead of obstore's errors, which may quote credentials. Let a
        FileNotFoundError through: an object does not exist."""
        try:
            yield
        except BaseError as err:
            text = f"{self._url} cannot be read: {_reason(err)}; try again"
            raise Unreachable(text) from None


def _signature(objects: Sequence[Any]) -> str:
    """Return a fingerprint that changes whenever an object changes, is added or is removed, even if
    the server sends no ETags."""
    rows = sorted(map(str, objects))  # the metadata, such as the size and the date of the change
    return digest("\n".join(rows))


def _reason(error: BaseError) -> str:
    """Return the reason that messages give for obstore's `error`."""
    for pattern, reason in REASONS.items():
        if re.search(rf"^ *({pattern})", str(error), re.MULTILINE):
            return reason
    return OTHER_REASON
