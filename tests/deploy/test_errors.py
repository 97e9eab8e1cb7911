"""AWS's errors leave as one line that says what to do. What moto cannot do wrong, a stand-in for AWS does."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from deploy.errors import explain
from tests.deploy.conftest import Aws
from tests.support.harness import ROOT, free_port

CREATE = ["create", "--image", "an-image", "--role", "arn:aws:iam::123456789012:role/r"]


class Refusing:
    """A stand-in for AWS that answers every call with one error."""

    def __init__(self) -> None:
        self.code, self.message, self.status = "", "", 400
        self.port = free_port()
        self._server = make_server("127.0.0.1", self.port, self._answer, threaded=True)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()

    def _answer(self, environ: Any, start: Any) -> Any:
        Request(environ).get_data()
        body = json.dumps({"__type": self.code, "message": self.message})
        return Response(body, self.status, {"x-amzn-ErrorType": self.code})(environ, start)


@pytest.fixture
def refusing(bare_aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusing]:
    server = Refusing()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    yield server
    server.stop()


REPLIES = {
    "throttling": ("ThrottlingException", "Rate exceeded", 400, "try again in a minute"),
    "quota": ("ResourceLimitExceeded", "The limit is 0 Instances", 400, "ask for a higher quota in Service Quotas"),
    "expired": (
        "ExpiredTokenException",
        "The security token is expired",
        400,
        "run 'aws configure' or 'aws sso login'",
    ),
    "denied": ("AccessDeniedException", "no", 400, "docs/deploy-policy.json"),
    "validation": ("ValidationException", "1 validation error:\n detected", 400, "1 validation error: detected"),
    "unknown": ("SomethingNew", "", 500, "DescribeModel: SomethingNew (SomethingNew)"),
}


@pytest.mark.parametrize(("code", "message", "status", "advice"), REPLIES.values(), ids=REPLIES)
def test_an_error_of_aws(
    bare_aws: Aws,
    refusing: Refusing,
    code: str,
    message: str,
    status: int,
    advice: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refusing.code, refusing.message, refusing.status = code, message, status
    assert bare_aws.deploy(*CREATE) == 1
    err = capsys.readouterr().err
    assert err.startswith("python -m deploy create: DescribeModel: ")
    assert advice in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "message", "text"),
    [
        ("ValidationError", "Endpoint x of account 1 not found.", "(see 'python -m deploy status'"),
        ("ModelNotReadyException", "not ready", "the model is still being loaded"),
        ("ServiceUnavailable", "busy", "try again in a minute"),
    ],
)
def test_an_error_of_the_runtime(
    bare_aws: Aws, refusing: Refusing, code: str, message: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refusing.code, refusing.message = code, message
    assert bare_aws.deploy("invoke", "--text", "x") == 1
    assert text in capsys.readouterr().err


def test_an_error_of_the_container_that_is_no_json(
    bare_aws: Aws, refusing: Refusing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"Error": {"Code": "ModelError", "Message": "received 500"}, "OriginalStatusCode": 500}
    made = botocore.exceptions.ClientError(error | {"OriginalMessage": "<html>\nbad</html>"}, "InvokeEndpoint")  # type: ignore[arg-type]
    assert explain(made) == "the container answered 500: <html> bad</html>"
    made = botocore.exceptions.ClientError(error | {"OriginalMessage": ""}, "InvokeEndpoint")  # type: ignore[arg-type]
    assert explain(made) == "the container answered 500: received 500"


def test_without_credentials(
    bare_aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert bare_aws.deploy(*CREATE) == 1
    assert "no AWS credentials were found: run 'aws configure'" in capsys.readouterr().err


def test_without_a_region(bare_aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("AWS_REGION")
    assert bare_aws.deploy("status") == 1
    assert "no AWS region is set: give --region, or set AWS_REGION" in capsys.readouterr().err
    assert bare_aws.deploy("status", "--region", "eu-west-1", "--dry-run") == 0


def test_with_an_unknown_profile(bare_aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert bare_aws.deploy("status", "--profile", "nobody") == 1
    assert "The config profile (nobody) could not be found" in capsys.readouterr().err


def test_the_region_of_a_profile_counts(
    bare_aws: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_REGION")
    (tmp_path / "config").write_text("[profile there]\nregion = ap-south-1\n")
    assert bare_aws.deploy("create", "--profile", "there", "--dry-run") == 0
    assert "ecr.ap-south-1.amazonaws.com" in capsys.readouterr().out


def test_where_nobody_listens(
    bare_aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert bare_aws.deploy("status") == 1
    assert "Could not connect to the endpoint URL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value", "code", "text"),
    [("AWS_REGION", "xx yy", 2, "'xx yy' has no SageMaker"), ("AWS_ENDPOINT_URL", "nonsense", 1, "Invalid endpoint")],
)
def test_with_an_environment_that_makes_no_sense(
    bare_aws: Aws,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    assert bare_aws.deploy("status") == code
    assert text in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error_to_show() -> None:
    line = f"{sys.executable} -m deploy create --dry-run --region eu-west-1 | head -c 1"
    done = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def test_no_command_is_a_usage_error(bare_aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        bare_aws.deploy()
    assert caught.value.code == 2
    assert "required: COMMAND" in capsys.readouterr().err
