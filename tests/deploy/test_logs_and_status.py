"""logs and status against moto's server."""

import pytest

from tests.deploy.conftest import Aws
from tests.deploy.shapes import IMAGE

GROUP = "/aws/sagemaker/Endpoints/triton-multi-model"
STREAM = "AllTraffic/i-1"


def test_the_log_is_printed_oldest_first_with_its_instances(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.write_log(GROUP, STREAM, "first")
    aws.now += 5
    aws.write_log(GROUP, "AllTraffic/i-2", "second")
    assert aws.deploy("logs") == 0
    assert capsys.readouterr().out == "i-1 first\ni-2 second\n"
    assert aws.deploy("logs", "--lines", "1") == 0
    assert capsys.readouterr().out == "i-2 second\n"
    aws.now += 120
    assert aws.deploy("logs", "--since", "2m") == 0
    assert capsys.readouterr().out == "i-2 second\n"


def test_following_prints_each_line_once_until_it_is_interrupted(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    aws.write_log(GROUP, STREAM, "old")
    aws.while_asleep = [
        lambda: aws.write_log(GROUP, STREAM, "new"),
        lambda: None,
        lambda: aws.write_log(GROUP, "AllTraffic/i-2", "newer"),
        interrupt,
    ]
    assert aws.deploy("logs", "--follow") == 130
    seen = capsys.readouterr()
    assert seen.out == "i-1 old\ni-1 new\ni-2 newer\n"
    assert seen.err == "interrupted; AWS continues what it has begun\n"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 1, f"there is no log group {GROUP} in eu-west-1: the container has not started yet"),
        (["--since", "yesterday"], 2, "--since 'yesterday' must be a number and s, m, h or d, such as 10m"),
        (["--lines", "0"], 2, "--lines must be 1 or more"),
    ],
)
def test_a_log_that_cannot_be_shown(
    aws: Aws, words: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aws.deploy("logs", *words) == code
    assert text in capsys.readouterr().err


def test_status_tells_what_runs_there(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--multi-model", "s3://b/m/", "--env", "SERVE_WORKERS=2", "--env", "HF_TOKEN=hush"]
    assert aws.deploy("create", "--image", IMAGE, *words) == aws.deploy("autoscale", "--min", "1", "--max", "3") == 0
    aws.set_endpoint("Updating", "it takes\n a while")
    capsys.readouterr()
    assert aws.deploy("status") == 0
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    facts = [(name, value) for name, value in rows if name != "modified"]
    assert facts == [
        ("endpoint", "triton-multi-model"),
        ("status", "Updating"),
        ("reason", "it takes a while"),
        ("configuration", aws.inventory()["configs"][0]),
        ("instances", "1 of 1, ml.c5.xlarge"),
        ("model", aws.inventory()["models"][0]),
        ("image", IMAGE),
        ("models", "s3://b/m/, multi-model"),
        ("variable", "SERVE_WORKERS=2"),
        ("variable", "HF_TOKEN=********"),
        ("scaling", "1 to 3 instances"),
    ]


def test_status_of_a_serverless_endpoint(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE, "--serverless", "2048") == aws.deploy("status") == 0
    out = capsys.readouterr().out
    assert "serverless     2048 MB, 5 concurrent\n" in out
    assert "models         in the image\n" in out
