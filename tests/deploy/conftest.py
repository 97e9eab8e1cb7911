"""AWS for the tests: moto's server over real HTTP, and a stand-in for the runtime API before the real container."""

import contextlib
import json
import logging
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import moto.backends
import pytest
import requests
from botocore.config import Config
from botocore.loaders import Loader
from botocore.session import Session as BotocoreSession
from moto.core.responses import ActionResult
from moto.sagemaker.exceptions import AWSValidationException
from moto.sagemaker.models import FakeEndpoint, SageMakerModelBackend, sagemaker_backends
from moto.sagemaker.responses import SageMakerResponse
from moto.server import ThreadedMotoServer
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from deploy import commandline
from deploy.commandline import Host, main
from tests.support.harness import PATIENCE, Server, free_port
from tests.support.started import starts_a_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

REGION = "eu-west-1"
ACCOUNT = "123456789012"  # moto's
PREFIX = "X-Amzn-SageMaker-"
LOADER = Loader()  # of the services' models, which take a while to read
CLIENTS: dict[str, Any] = {}  # for the one moto server
logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line per request otherwise
Call = tuple[str, str, dict[str, Any]]
CALLS: list[Call] = []  # of the test that runs
REQUESTS: list[str] = []  # to moto's server, whoever made them
SESSIONS: dict[tuple[tuple[str, str], ...], boto3.Session] = {}  # by the environment
build_parser = cache(commandline.build_parser)  # a command line has but one in its life
MOTO_MODULES = tuple(moto.backends.list_of_moto_modules())  # else its server lists them for each request


def new_core(profile: str | None = None) -> BotocoreSession:
    core = BotocoreSession(profile=profile)
    core.register_component("data_loader", LOADER)
    return core


def note(params: dict[str, Any], model: Any, **_: Any) -> None:
    CALLS.append((model.service_model.service_name, model.name, dict(params)))


class NotingSession(boto3.Session):
    """Notes every call before it is made, and keeps its clients, which take a while to make."""

    def __init__(self, profile: str | None) -> None:
        core = new_core(profile)
        core.register("before-parameter-build.*.*", note)  # type: ignore[arg-type]
        super().__init__(botocore_session=core)
        self._kept: dict[str, Any] = {}

    def client(self, service_name: str, *, config: Config, **options: Any) -> Any:  # type: ignore[override]
        key = f"{service_name} {vars(config)} {options}"
        if key not in self._kept:
            self._kept[key] = super().client(service_name, config=config, **options)  # type: ignore[call-overload]
        return self._kept[key]


def environment() -> tuple[tuple[str, str], ...]:
    """All that a session reads, but for the files of profiles, which lie elsewhere in each test."""
    return tuple((k, v) for k, v in sorted(os.environ.items()) if k.startswith("AWS_") and not k.endswith("_FILE"))


@dataclass
class Aws:
    """moto's server, its clients, and the state that a test sets in it."""

    url: str
    components: "Components"
    calls: list[Call]
    now: float = field(default_factory=time.time)
    while_asleep: list[Callable[[], None]] = field(default_factory=list)

    def client(self, service: str) -> Any:
        if service not in CLIENTS:
            CLIENTS[service] = boto3.Session(botocore_session=new_core()).client(service, region_name=REGION)  # type: ignore[call-overload]
        return CLIENTS[service]

    @property
    def backend(self) -> Any:
        """moto's own objects of SageMaker, for states that no call reaches."""
        return sagemaker_backends[ACCOUNT][REGION]

    def session(self, profile_name: str | None = None) -> boto3.Session:
        """One session for all tests whose environment is the same; with a profile a new one."""
        if profile_name:
            return NotingSession(profile_name)
        if (key := environment()) not in SESSIONS:
            SESSIONS[key] = NotingSession(None)
        return SESSIONS[key]

    def sleep(self, seconds: float) -> None:
        """No time passes but the clock's; one thing happens in each sleep, if the test wants that."""
        self.now += seconds
        if not self.while_asleep:
            raise AssertionError("slept, and nothing was to happen")
        self.while_asleep.pop(0)()

    def deploy(self, *words: str, answer: bool = True) -> int:
        """The command's exit code."""
        return main(words, Host(self.session, lambda: self.now, self.sleep, lambda _: answer))

    def names(self) -> list[str]:
        """The operations that were called."""
        return [name for _, name, _ in self.calls]

    def set_endpoint(self, status: str, reason: str | None = None, name: str = "triton-multi-model") -> None:
        """The endpoint's status from now on."""
        endpoint = self.backend.endpoints[name]
        endpoint.endpoint_status, endpoint.failure_reason = status, reason

    def write_log(self, group: str, stream: str, *lines: str) -> None:
        """What a container writes, now."""
        logs = self.client("logs")
        with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
            logs.create_log_group(logGroupName=group)
        with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
            logs.create_log_stream(logGroupName=group, logStreamName=stream)
        events = [{"timestamp": int(self.now * 1000), "message": line} for line in lines]
        logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)

    def inventory(self) -> dict[str, Any]:
        """All that there is, by service."""
        sagemaker, scaling = self.client("sagemaker"), self.client("application-autoscaling")
        return {
            "endpoints": [each["EndpointName"] for each in sagemaker.list_endpoints()["Endpoints"]],
            "configs": [each["EndpointConfigName"] for each in sagemaker.list_endpoint_configs()["EndpointConfigs"]],
            "models": [each["ModelName"] for each in sagemaker.list_models()["Models"]],
            "jobs": [each["TransformJobName"] for each in sagemaker.list_transform_jobs()["TransformJobSummaries"]],
            "alarms": [each["AlarmName"] for each in self.client("cloudwatch").describe_alarms()["MetricAlarms"]],
            "targets": scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"],
            "policies": scaling.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"],
            "repositories": [r["repositoryName"] for r in self.client("ecr").describe_repositories()["repositories"]],
            "roles": [role["RoleName"] for role in self.client("iam").list_roles()["Roles"]],
            "buckets": [bucket["Name"] for bucket in self.client("s3").list_buckets()["Buckets"]],
            "logs": [group["logGroupName"] for group in self.client("logs").describe_log_groups()["logGroups"]],
        }


def update_endpoint(self: SageMakerResponse) -> ActionResult:
    """What moto lacks: UpdateEndpoint, which takes effect at once."""
    endpoint = self.sagemaker_backend.endpoints[self._get_param("EndpointName")]
    endpoint.endpoint_config_name = self._get_param("EndpointConfigName")
    return ActionResult({"EndpointArn": endpoint.arn})


class Components:
    """What moto lacks: inference components, and variants without a model. They are in service at once, unless
    `status` says otherwise."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self.status = "InService"

    def create_inference_component(self, call: SageMakerResponse) -> ActionResult:
        given = json.loads(call.body)
        name = given["InferenceComponentName"]
        self._set(name, {**given, "CopyCount": given["RuntimeConfig"]["CopyCount"]})
        return ActionResult({"InferenceComponentArn": f"arn:aws:sagemaker:::inference-component/{name}"})

    def update_inference_component(self, call: SageMakerResponse) -> ActionResult:
        given = json.loads(call.body)
        there = self.found[given["InferenceComponentName"]]
        copies = given.get("RuntimeConfig", {}).get("CopyCount", there["CopyCount"])
        self._set(given["InferenceComponentName"], {**there, **given, "CopyCount": copies})
        return ActionResult({"InferenceComponentArn": "arn"})

    def update_inference_component_runtime_config(self, call: SageMakerResponse) -> ActionResult:
        given = json.loads(call.body)
        self.found[given["InferenceComponentName"]]["CopyCount"] = given["DesiredRuntimeConfig"]["CopyCount"]
        return ActionResult({"InferenceComponentArn": "arn"})

    def _set(self, name: str, given: dict[str, Any]) -> None:
        self.found[name] = {**given, "InferenceComponentStatus": self.status}

    def describe_inference_component(self, call: SageMakerResponse) -> ActionResult:
        """As AWS describes one: the image as it is deployed, copies that are there and that are wanted."""
        there = self.found.get(json.loads(call.body)["InferenceComponentName"])
        if there is None:
            raise AWSValidationException("Could not find inference component.")
        container = dict(there["Specification"]["Container"])
        container["DeployedImage"] = {"SpecifiedImage": container.pop("Image"), "ResolvedImage": "sha256:1"}
        copies = {"DesiredCopyCount": there["CopyCount"], "CurrentCopyCount": there["CopyCount"]}
        described = {**there, "Specification": {**there["Specification"], "Container": container}}
        return ActionResult(described | {"RuntimeConfig": copies, "FailureReason": "no room"})

    def delete_inference_component(self, call: SageMakerResponse) -> ActionResult:
        del self.found[json.loads(call.body)["InferenceComponentName"]]
        return ActionResult({})

    def list_inference_components(self, call: SageMakerResponse) -> ActionResult:
        endpoint = json.loads(call.body)["EndpointNameEquals"]
        listed = [{"InferenceComponentName": n} for n, each in self.found.items() if each["EndpointName"] == endpoint]
        return ActionResult({"InferenceComponents": listed})

    def add_to_moto(self, monkeypatch: pytest.MonkeyPatch) -> "Components":
        for name in vars(Components):
            if name.endswith(("_component", "_components", "_config")):
                monkeypatch.setattr(SageMakerResponse, name, self._answer(name), raising=False)
        check = SageMakerModelBackend.validate_production_variants
        with_model = lambda backend, given: check(backend, [each for each in given if "ModelName" in each])  # noqa: E731
        monkeypatch.setattr(SageMakerModelBackend, "validate_production_variants", with_model)
        return self

    def _answer(self, name: str) -> Callable[[SageMakerResponse], ActionResult]:
        def answer(call: SageMakerResponse) -> ActionResult:
            found: ActionResult = getattr(self, name)(call)
            return found

        return answer


@pytest.fixture(scope="session")
@starts_a_server
def moto_url() -> Iterator[str]:
    moto.backends.list_of_moto_modules = lambda: MOTO_MODULES
    port = free_port()
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    assert server._server
    server._server.app = noting(server._server.app)
    yield f"http://127.0.0.1:{port}"
    server.stop()


def noting(app: "WSGIApplication") -> "WSGIApplication":
    """The same, which adds each request to REQUESTS."""

    def note_and_answer(environ: "WSGIEnvironment", start: "StartResponse") -> Any:
        REQUESTS.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        return app(environ, start)

    return note_and_answer


def slow_creation(monkeypatch: pytest.MonkeyPatch, status: str = "Creating") -> None:
    """Endpoints are created with that status, as AWS's are; moto's are in service at once."""
    original = FakeEndpoint.__init__

    def initialize(self: FakeEndpoint, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.endpoint_status = status

    monkeypatch.setattr(FakeEndpoint, "__init__", initialize)


@pytest.fixture
def bare_aws(moto_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Aws:
    """An empty account, and an environment that names no other."""
    for name, value in {
        "AWS_ENDPOINT_URL": moto_url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": REGION,
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr(SageMakerResponse, "update_endpoint", update_endpoint, raising=False)
    requests.post(f"{moto_url}/moto-api/reset", timeout=PATIENCE).raise_for_status()
    monkeypatch.setattr(commandline, "build_parser", build_parser)
    CALLS.clear()
    return Aws(moto_url, Components().add_to_moto(monkeypatch), CALLS)


@pytest.fixture
def aws(bare_aws: Aws) -> Aws:
    """An account with the execution role and the repository."""
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    bare_aws.client("iam").create_role(RoleName="triton-multi-model", AssumeRolePolicyDocument=trust)
    bare_aws.client("ecr").create_repository(repositoryName="triton-multi-model")
    return bare_aws


ENGINE = """#!/bin/sh
case "$*" in *inspect*) test -z "$NO_IMAGE"; exit ;; esac
echo "$(basename "$0") $*" >> "$CALLS"
case "$*" in
  *--password-stdin*) cat >> "$CALLS.stdin" ;;
  push*) exit "${PUSH_EXIT:-0}" ;;
esac
"""


def add_engine(folder: Path, name: str) -> None:
    """A stand-in for an engine, which writes down how it was called."""
    (folder / name).write_text(ENGINE)
    (folder / name).chmod(0o755)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for docker before all else on the PATH; the file of its calls."""
    add_engine(tmp_path, "docker")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


class RuntimeStandIn:
    """A stand-in for SageMaker's runtime API: hands /endpoints/NAME/invocations to a container and wraps its errors."""

    def __init__(self, container: str) -> None:
        self.container, self.port = container, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.broken_stream = False
        self._server = make_server("127.0.0.1", self.port, self._answer, threaded=True)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()

    def _answer(self, environ: Any, start: Any) -> Any:
        return self._reply(Request(environ))(environ, start)

    def _reply(self, request: Request) -> Response:
        reply = requests.post(
            f"{self.container}/invocations", data=request.get_data(), headers=kept(request), timeout=PATIENCE
        )
        if not reply.ok:
            return model_error(reply)
        if request.path.endswith("/invocations-response-stream"):
            return self._stream(reply)
        return Response(reply.content, content_type=reply.headers["Content-Type"])

    def _stream(self, reply: requests.Response) -> Response:
        half = len(reply.content) // 2
        events = event("PayloadPart", reply.content[:half]) + event("PayloadPart", reply.content[half:])
        if self.broken_stream:
            events += event(
                "ModelStreamError", b'{"Message": "it broke", "ErrorCode": "ModelInvocationTimeExceeded"}', "exception"
            )
        return Response(events, content_type="application/vnd.amazon.eventstream")


def kept(request: Request) -> dict[str, str]:
    """The headers that SageMaker hands on; the stream's call has its Accept in a header of its own."""
    names = ("content-type", "accept", PREFIX.lower())
    found = {name: value for name, value in request.headers.items() if name.lower().startswith(names)}
    accept = request.headers.get(f"{PREFIX}Accept")
    return found | ({"Accept": accept} if accept else {})


def model_error(reply: requests.Response) -> Response:
    """What SageMaker makes of a container's error."""
    body = {
        "Message": "Received an error from primary",
        "OriginalStatusCode": reply.status_code,
        "OriginalMessage": reply.text,
        "LogStreamArn": "arn:aws:logs",
    }
    return Response(json.dumps(body), 424, {"x-amzn-ErrorType": "ModelError"}, content_type="application/json")


def event(name: str, payload: bytes, kind: str = "event") -> bytes:
    """One message of AWS's event stream: lengths and their CRC, headers of strings, payload, CRC."""
    pairs = {
        ":message-type": kind,
        f":{'exception' if kind == 'exception' else 'event'}-type": name,
        ":content-type": "application/octet-stream",
    }
    headers = b"".join(
        struct.pack("!B", len(key)) + key.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode()
        for key, value in pairs.items()
    )
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack("!I", zlib.crc32(message))


@pytest.fixture
def runtime(server: Server) -> Iterator[RuntimeStandIn]:
    """The runtime API in front of the real container."""
    standing = RuntimeStandIn(server.url)
    yield standing
    standing.stop()
