"""Simulates InvokeEndpointAsync: queues its calls, reads their input from a folder that stands in
for S3, and writes their output there."""

import os
import re
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO

from serving.host.files import replace_file
from simulate.endpoint import Call, Endpoint
from simulate.errors import ModelError, PlatformError, ValidationError
from simulate.models import find_object
from simulate.service_model import passed_on

# where results are written; on AWS, S3OutputPath in the endpoint's configuration determines this
OUTPUT = "s3://simulate/async"
# the API's defaults for InvocationTimeoutSeconds and RequestTTLSeconds
INVOCATION_SECONDS = 900
QUEUE_SECONDS = 21600
CALLS_AT_ONCE = 4  # AWS does not publish its default
LOCATION = re.compile(r"s3://([^/]+)/(.+)")


class Queue:
    """The queue of asynchronous calls. The folder `s3` stands in for S3."""

    def __init__(self, endpoint: Endpoint, s3: Path) -> None:
        self._endpoint = endpoint
        self._s3 = s3
        self._journal = endpoint.journal
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="async")

    def put(self, name: str, members: Mapping[str, str], body: bytes) -> tuple[str, str, str]:
        """Queue a call. Return its id, and the locations where its output or its error will be
        written. Raise ValidationError if the call is invalid."""
        location = members.get("InputLocation", "")
        most = self._journal.limit("async-inline")
        if bool(location) == bool(body):
            raise ValidationError("Provide exactly one of Body and InputLocation")
        if len(body) > most:
            self._journal.complain("async-inline", f"a body of {len(body)} bytes")
            raise ValidationError(
                f"Value at 'body' failed to satisfy constraint: at most {most:g} bytes"
            )
        if location:
            _key(location)  # raises ValidationError if it is invalid
        identifier = members.get("InferenceId") or str(uuid.uuid4())
        file = uuid.uuid4()
        extension = members.get("S3OutputPathExtension", "").strip("/")
        folder = f"{OUTPUT}/{extension}".rstrip("/")
        output = f"{folder}/{members.get('Filename') or f'{file}.out'}"
        failure = f"{OUTPUT}/failures/{file}-error.out"
        members = {**members, "InferenceId": identifier}  # a header for the container
        invoke = partial(self._invoke, name, members, body, time.monotonic())
        self._threads.submit(self._write_outcome, invoke, output, failure)
        return identifier, output, failure

    def close(self) -> None:
        """Drop the calls that are still in the queue."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _write_outcome(self, invoke: Callable[[], bytes], output: str, failure: str) -> None:
        """Write what `invoke` returns to `output`, or its error to `failure`."""
        try:
            reply = invoke()
            write_object(self._s3, output, reply)
            self._journal.count("asynchronous calls answered")
        except PlatformError as err:
            text = err.original if isinstance(err, ModelError) and err.original else str(err)
            write_object(self._s3, failure, text.encode())
            self._journal.count("asynchronous calls failed")
        except OSError as err:
            self._journal.say(f"cannot write {output} or {failure}: {err}")

    def _invoke(self, name: str, members: Mapping[str, str], inline: bytes, queued: float) -> bytes:
        """Call the endpoint, and return the reply's body. `inline` is the body of a call without
        InputLocation, and `queued` is when the call was queued (time.monotonic()). Raise
        PlatformError if the call fails, and OSError if its input cannot be read."""
        longest_wait = int(members.get("RequestTTLSeconds", QUEUE_SECONDS))
        if time.monotonic() > queued + longest_wait:
            raise ValidationError("The request has waited longer than RequestTTLSeconds")
        location = members.get("InputLocation")
        opened = self._open(location) if location else BytesIO(inline)
        with opened as body:
            size = body.seek(0, os.SEEK_END)
            body.seek(0)
            headers = {**passed_on(members), "Content-Length": str(size)}
            seconds = int(members.get("InvocationTimeoutSeconds", INVOCATION_SECONDS))
            deadline = time.monotonic() + min(seconds, self._journal.limit("async-time"))
            call = Call(name, body, headers, deadline, "async-time")
            _, reply = self._endpoint.invoke(call, self._journal.limit("async-body"))
            return reply

    def _open(self, location: str) -> IO[bytes]:
        """Open an object. Raise ValidationError if it does not exist or is too large."""
        path = find_object(self._s3, _key(location))
        if path is None:
            raise ValidationError(f"There is no object {location} ({self._s3} stands for S3)")
        size = path.stat().st_size
        if size > self._journal.limit("async-body"):
            self._journal.complain("async-body", f"{path} has {size} bytes")
            raise ValidationError("The input in S3 is larger than an asynchronous call allows")
        return path.open("rb")


def write_object(root: Path, location: str, data: bytes) -> None:
    """Write an object atomically, so that readers never see a partial object."""
    path = root / _key(location)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data)


def _key(location: str) -> str:
    """Return BUCKET/KEY for s3://BUCKET/KEY. Raise ValidationError for any other location."""
    match = LOCATION.fullmatch(location)
    if not match or ".." in Path(location).parts:
        raise ValidationError(
            f"{location!r} is not the location of an object in S3; use s3://BUCKET/KEY"
        )
    return f"{match[1]}/{match[2]}"
