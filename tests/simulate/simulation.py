"""Runs a simulated endpoint in this process with a real container, and creates boto3 clients for
it."""

import tarfile
import tempfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from serving.host.machine import memory_limit
from simulate.api import Api, Server
from simulate.asynchronous import Queue
from simulate.container import Launch
from simulate.endpoint import Endpoint
from simulate.rules import RULES, Journal, with_limits
from tests.support.harness import PATIENCE, wait_until

MISBEHAVING = Path(__file__).with_name("misbehaving.py")
# ping-time is long, because these tests do not check how fast a busy machine answers;
# tests/simulate/test_rules.py breaks that rule
QUICK = {"ping-interval": 0.2, "ping-time": 30, "start-up": PATIENCE}
# for tests that must fail if the answer to a ping is late
PLATFORMS_PINGS = {"ping-interval": RULES["ping-interval"].limit}
LINES_OF_A_FAILURE = 200  # the number of last lines of the container that pytest shows
# Seconds within which a container must show what is wrong, tried in this order. Only a busy machine
# needs the longer ones.
ENOUGH_TO_ANSWER = (2, 8, 32, 120)


def client_of(url: str, service: str = "sagemaker-runtime", **config: Any) -> Any:
    """Return a boto3 client in which only endpoint_url is changed. It does not retry."""
    return boto3.client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="none",
        aws_secret_access_key="none",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=PATIENCE, **config),
    )  # type: ignore[call-overload]


class Simulation:
    """A simulated endpoint. `lines` are all lines that it has printed, and `s3` is the folder that
    stands in for S3."""

    def __init__(
        self,
        program: Path = MISBEHAVING,
        *,
        limits: Mapping[str, float] | None = None,
        model: Path | None = None,
        models: Path | None = None,
        memory: int = 0,
        environment: Mapping[str, str] | None = None,
        **variables: str,
    ) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="sim-")
        folder = Path(self._scratch.name)
        self.s3, self.lines = folder / "s3", list[str]()
        self.journal = Journal(with_limits(QUICK | dict(limits or {})), self.lines.append)
        launch = Launch(
            folder=folder / "containers",
            environment={**(environment or {}), **variables},
            memory=memory or memory_limit(),
            program=program,
            model=model,
        )
        self.endpoint = Endpoint(launch, models, self.journal)
        self._queue = Queue(self.endpoint, self.s3)
        self._server = Server("127.0.0.1", 0, Api(self.endpoint, self._queue).app())
        self.url = f"http://127.0.0.1:{self._server.port}"
        self.client = client_of(self.url)

    def __enter__(self) -> "Simulation":
        self.endpoint.start()
        try:
            wait_until(self.endpoint.settled.is_set, "the container is in service, or has failed")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        if kind:
            print(*self.lines[-LINES_OF_A_FAILURE:], sep="\n")
        self._server.close()
        self._queue.close()
        self.endpoint.stop()
        self._scratch.cleanup()

    def invoke(self, body: bytes = b"{}", **arguments: Any) -> Any:
        return self.client.invoke_endpoint(EndpointName="any", Body=body, **arguments)

    def kill(self) -> None:
        assert self.endpoint._container
        self.endpoint._container.kill()

    def complained(self, rule: str) -> bool:
        """Return whether the simulator has reported the rule and explained it in words."""
        return self.journal.complaints[rule] > 0 and any(
            line.startswith(f"rule {rule}: ") for line in self.lines
        )

    def wait_complaint(self, rule: str) -> None:
        wait_until(
            lambda: self.complained(rule), f"a complaint of {rule}; it has said {self.lines[-10:]}"
        )


def make_tar(path: Path, files: Mapping[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            tar.addfile(entry, BytesIO(text.encode()))
    return path
