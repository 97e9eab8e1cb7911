"""InvokeEndpointAsync: queued calls that read their input from S3 and write their output there."""

import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO

from simulate.endpoint import Call, Endpoint
from simulate.errors import ModelError, PlatformError, ValidationError
from simulate.files import find_object, write_object

INVOCATION_SECONDS, QUEUE_SECONDS = 900, 21600  # the API's defaults
CALLS_AT_ONCE = 4  # AWS does not publish its number


@dataclass(frozen=True)
class Job:
    """A call in the queue. Its input is at `location` or, if that is "", in `body`. It may wait until `expires`
    (time.monotonic()) and then run for `seconds`. `output` and `failure` are where its result goes."""

    endpoint: str
    headers: Mapping[str, str]
    location: str
    body: bytes
    expires: float
    seconds: int
    inference_id: str
    output: str
    failure: str


class Queue:
    """The queue of asynchronous calls. `s3` stands for S3; `output` is the prefix of the results."""

    def __init__(self, endpoint: Endpoint, s3: Path, output: str) -> None:
        self._endpoint, self._s3, self._output = endpoint, s3, output.rstrip("/")
        self._journal, self._rules = endpoint.journal, endpoint.journal.rules
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="async")

    def put(self, name: str, members: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Job:
        """Raise ValidationError."""
        location, most = members.get("InputLocation", ""), self._rules["async-inline"].limit
        if bool(location) == bool(body):
            raise ValidationError("Provide exactly one of Body and InputLocation")
        if len(body) > most:
            self._journal.complain("async-inline", f"a body of {len(body)} bytes")
            raise ValidationError(f"Value at 'body' failed to satisfy constraint: at most {most:g} bytes")
        if location:
            find_object(self._s3, location)
        identifier, file = members.get("InferenceId") or str(uuid.uuid4()), uuid.uuid4()
        extension = members.get("S3OutputPathExtension", "").strip("/")
        folder = "/".join(filter(None, [self._output, extension]))
        job = Job(
            endpoint=name,
            headers={**headers, "X-Amzn-SageMaker-Inference-Id": identifier},
            location=location,
            body=body,
            expires=time.monotonic() + int(members.get("RequestTTLSeconds", QUEUE_SECONDS)),
            seconds=int(members.get("InvocationTimeoutSeconds", INVOCATION_SECONDS)),
            inference_id=identifier,
            output=f"{folder}/{members.get('Filename') or f'{file}.out'}",
            failure=f"{self._output}/failures/{file}-error.out",
        )
        self._threads.submit(self._work, job)
        return job

    def close(self) -> None:
        """Drop the calls that still wait."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _work(self, job: Job) -> None:
        try:
            write_object(self._s3, job.output, self._invoke(job))
            self._journal.count("asynchronous calls answered")
        except PlatformError as err:
            text = err.original if isinstance(err, ModelError) and err.original else str(err)
            write_object(self._s3, job.failure, text.encode())
            self._journal.count("asynchronous calls failed")
        except OSError as err:
            self._journal.say(f"cannot write the result of {job.inference_id}: {err}")

    def _invoke(self, job: Job) -> bytes:
        if time.monotonic() > job.expires:
            raise ValidationError("The request has waited longer than RequestTTLSeconds")
        with self._open(job) as body:
            headers = {**job.headers, "Content-Length": str(body.seek(0, 2))}
            body.seek(0)
            deadline = time.monotonic() + min(job.seconds, self._rules["async-time"].limit)
            call = Call(endpoint=job.endpoint, body=body, headers=headers, deadline=deadline, rule="async-time")
            return self._endpoint.invoke(call, self._rules["async-body"].limit)[1]

    def _open(self, job: Job) -> IO[bytes]:
        if not job.location:
            return BytesIO(job.body)
        path = find_object(self._s3, job.location)
        if path is None:
            raise ValidationError(f"There is no object {job.location} ({self._s3} stands for S3)")
        if (size := path.stat().st_size) > self._rules["async-body"].limit:
            self._journal.complain("async-body", f"{path} has {size} bytes")
            raise ValidationError("The input in S3 is larger than an asynchronous call allows")
        return path.open("rb")
