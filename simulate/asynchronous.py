"""InvokeEndpointAsync: calls that wait in a queue, take their input from S3 and leave their output there."""

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

INVOCATION_SECONDS, QUEUE_SECONDS = 900, 21600  # defaults of the API
CALLS_AT_ONCE = 4  # of an instance; the platform's own choice is not published


@dataclass(frozen=True)
class Accepted:
    """What the caller gets at once."""

    inference_id: str
    output: str
    failure: str


@dataclass(frozen=True)
class Job:
    """A call in the queue, its input by its location or inline; `expires` and `seconds` bound the wait and the work."""

    endpoint: str
    headers: Mapping[str, str]
    location: str
    body: bytes
    expires: float
    seconds: int


class Queue:
    """`output` is the prefix s3://BUCKET/PREFIX that results are left below."""

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
        job = Job(name, {**headers, **inference}, location, body, expires, seconds)
        self._threads.submit(self._work, job, accepted)
        return accepted

    def close(self) -> None:
        """Calls that still wait are given up."""
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
            said = err.original if isinstance(err, ModelError) and err.original else str(err)
            self._s3.write(accepted.failure, said.encode())
            self._journal.count("asynchronous calls failed")
        except OSError as err:
            self._journal.say(f"the result of {accepted.inference_id} could not be written: {err}")

    def _invoke(self, job: Job) -> bytes:
        if time.monotonic() > job.expires:
            raise ValidationError("The request has waited longer than RequestTTLSeconds")
        limits = self._journal.rules
        with ExitStack() as stack:
            body = stack.enter_context(self._open(job))
            size = {"Content-Length": str(size_of(body))}
            deadline = time.monotonic() + min(job.seconds, limits["async-time"].limit)
            call = Call(job.endpoint, body, {**job.headers, **size}, deadline, "async-time")
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
            raise ValidationError("The input in S3 is larger than an asynchronous call may have")


def size_of(file: IO[bytes]) -> int:
    """Bytes; the file stands at its beginning afterwards."""
    size = file.seek(0, 2)
    file.seek(0)
    return size
