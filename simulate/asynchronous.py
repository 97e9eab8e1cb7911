"""InvokeEndpointAsync: queued calls that read their input from S3 and write their output there."""

import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO

from simulate.calls import Call
from simulate.endpoint import Endpoint
from simulate.errors import ModelError, PlatformError, ValidationError
from simulate.s3 import Folder

INVOCATION_SECONDS, QUEUE_SECONDS = 900, 21600  # the API's defaults
CALLS_AT_ONCE = 4  # per instance; AWS does not publish its number


@dataclass(frozen=True)
class Accepted:
    """The reply that the caller gets at once."""

    inference_id: str
    output: str
    failure: str


@dataclass(frozen=True)
class Job:
    """A call in the queue. Its input is at `location` or, if that is "", in `body`. It may wait until `expires`
    (time.monotonic()) and then run for `seconds`."""

    endpoint: str
    headers: Mapping[str, str]
    location: str
    body: bytes
    expires: float
    seconds: int


class Queue:
    """The queue of asynchronous calls; `output` is the prefix of the results, s3://BUCKET/PREFIX."""

    def __init__(self, endpoint: Endpoint, s3: Folder, output: str, instances: int) -> None:
        self._endpoint, self._s3, self._output = endpoint, s3, output.rstrip("/")
        self._journal = endpoint.journal
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE * instances, thread_name_prefix="async")

    def put(self, name: str, members: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Accepted:
        """Raises ValidationError."""
        location = members.get("InputLocation", "")
        if bool(location) == bool(body):
            raise ValidationError("Provide exactly one of Body and InputLocation")
        most = self._journal.rules["async-inline"].limit
        if len(body) > most:
            self._journal.complain("async-inline", f"a body of {len(body)} bytes")
            raise ValidationError(f"Value at 'body' failed to satisfy constraint: at most {most:g} bytes")
        if location:
            self._s3.find(location)
        accepted = self._accepted(members)
        seconds = int(members.get("InvocationTimeoutSeconds", INVOCATION_SECONDS))
        expires = time.monotonic() + int(members.get("RequestTTLSeconds", QUEUE_SECONDS))
        inference = {"X-Amzn-SageMaker-Inference-Id": accepted.inference_id}
        job = Job(
            endpoint=name,
            headers={**headers, **inference},
            location=location,
            body=body,
            expires=expires,
            seconds=seconds,
        )
        self._threads.submit(self._work, job, accepted)
        return accepted

    def close(self) -> None:
        """Drops the calls that still wait."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _accepted(self, members: Mapping[str, str]) -> Accepted:
        identifier = members.get("InferenceId") or str(uuid.uuid4())
        file = uuid.uuid4()
        folder = "/".join(filter(None, [self._output, members.get("S3OutputPathExtension", "").strip("/")]))
        name = members.get("Filename") or f"{file}.out"
        return Accepted(identifier, f"{folder}/{name}", f"{self._output}/failures/{file}-error.out")

    def _work(self, job: Job, accepted: Accepted) -> None:
        try:
            self._s3.write(accepted.output, self._invoke(job))
            self._journal.count("asynchronous calls answered")
        except PlatformError as err:
            text = err.original if isinstance(err, ModelError) and err.original else str(err)
            self._s3.write(accepted.failure, text.encode())
            self._journal.count("asynchronous calls failed")
        except OSError as err:
            self._journal.say(f"cannot write the result of {accepted.inference_id}: {err}")

    def _invoke(self, job: Job) -> bytes:
        if time.monotonic() > job.expires:
            raise ValidationError("The request has waited longer than RequestTTLSeconds")
        limits = self._journal.rules
        with ExitStack() as stack:
            body = stack.enter_context(self._open(job))
            size = {"Content-Length": str(size_of(body))}
            deadline = time.monotonic() + min(job.seconds, limits["async-time"].limit)
            headers = {**job.headers, **size}
            call = Call(endpoint=job.endpoint, body=body, headers=headers, deadline=deadline, rule="async-time")
            return self._endpoint.invoke(call, limits["async-body"].limit).body

    def _open(self, job: Job) -> IO[bytes]:
        path = self._s3.find(job.location) if job.location else None
        if job.location and path is None:
            raise ValidationError(f"There is no object {job.location} ({self._s3.root} stands for S3)")
        if path is None:
            return BytesIO(job.body)
        self._check_size(path)
        return path.open("rb")

    def _check_size(self, path: Path) -> None:
        if path.stat().st_size > self._journal.rules["async-body"].limit:
            self._journal.complain("async-body", f"{path} has {path.stat().st_size} bytes")
            raise ValidationError("The input in S3 is larger than an asynchronous call allows")


def size_of(file: IO[bytes]) -> int:
    """The file's size in bytes; rewinds it to its beginning."""
    size = file.seek(0, 2)
    file.seek(0)
    return size
