"""invoke: the real container behind a stand-in for the runtime API, and moto for asynchronous results."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from PIL import Image

from tests.deploy.conftest import Aws, NotingSession, RuntimeStandIn
from tests.support.harness import PATIENCE, ROOT, Server, free_port

DIGIT = str(ROOT / "model_repository/resnet/example.png")
PAGE = str(ROOT / "model_repository/yolov5/example.jpg")
TENSORS = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2.0]}]}


def invoke(aws: Aws, runtime: RuntimeStandIn, *words: str) -> int:
    return aws.deploy("invoke", *words, "--endpoint-url", runtime.url)


def test_a_file_gives_readable_classes(aws: Aws, runtime: RuntimeStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(aws, runtime, DIGIT, "--model", "resnet", "--version", "1", "--parameter", "top_k=2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["resnet version 1", "instance 0"]
    assert [line.split()[0] for line in lines[2:]] == ["6", "0"]


def test_detections_are_a_table(aws: Aws, runtime: RuntimeStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(aws, runtime, PAGE, "--model", "yolov5", "--parameter", "max_detections=2") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows[0] == ["label", "score", "xmin", "ymin", "xmax", "ymax"]
    assert rows[1] == ["1", "0.965", "676.2", "469.8", "734.9", "565.2"]
    assert len(rows) == 3


@pytest.mark.parametrize(("name", "form"), [("found.png", "PNG"), ("found.JPG", "JPEG")])
def test_detections_are_drawn_into_a_picture(
    aws: Aws, runtime: RuntimeStandIn, tmp_path: Path, name: str, form: str
) -> None:
    assert invoke(aws, runtime, PAGE, "--model", "yolov5", "--output", str(tmp_path / name)) == 0
    drawn, plain = Image.open(tmp_path / name), Image.open(PAGE)
    assert drawn.format == form
    assert drawn.size == plain.size
    saturation = np.asarray(drawn.convert("HSV"))[:, :, 1]
    assert (saturation > 150).sum() > 2000  # frames of strong colours; the page is grey


def test_a_text_gives_a_shortened_embedding(
    aws: Aws, runtime: RuntimeStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(aws, runtime, "--text", "A man is eating food.", "--model", "bert") == 0
    assert "  384 numbers: 0.0332, 0.0044, -0.0063, " in capsys.readouterr().out


def test_tensors_come_back_as_json(aws: Aws, runtime: RuntimeStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(aws, runtime, "--json", json.dumps(TENSORS), "--model", "scale", "--version", "2") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["model_version"] == "2"
    assert document["outputs"][0]["data"] == [4.5, 6.0]


def test_a_raw_reply_is_printed_as_it_comes(
    aws: Aws, runtime: RuntimeStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(aws, runtime, DIGIT, "--model", "resnet", "--raw") == 0
    assert json.loads(capsys.readouterr().out)["predictions"][0]["classes"]


def test_a_file_of_lines_and_one_of_an_unknown_kind(
    aws: Aws, runtime: RuntimeStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('"one"\n"two"\n')
    assert invoke(aws, runtime, str(lines), "--model", "bert") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    unknown = tmp_path / "digit"
    unknown.write_bytes(Path(DIGIT).read_bytes())
    assert invoke(aws, runtime, str(unknown), "--model", "resnet") == 0
    assert "instance 0" in capsys.readouterr().out


def test_a_stream_is_printed_in_its_parts(
    aws: Aws, runtime: RuntimeStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(aws, runtime, "--json", '{"instances": ["ä", "b"]}', "--model", "bert", "--stream") == 0
    events = [line for line in capsys.readouterr().out.splitlines() if line.startswith("data: ")]
    assert [len(json.loads(line[6:])["predictions"]) for line in events] == [2]
    runtime.broken_stream = True
    assert invoke(aws, runtime, "--json", '{"instances": ["a"]}', "--model", "bert", "--stream") == 1
    assert capsys.readouterr().err.endswith("it broke (ModelStreamError)\n")


def test_a_picture_for_the_terminal_needs_a_file(
    aws: Aws, runtime: RuntimeStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(aws, runtime, PAGE, "--model", "yolov5", "--accept", "image/png") == 1
    assert "bytes of image/png: --output FILE writes them" in capsys.readouterr().err
    assert invoke(aws, runtime, PAGE, "--model", "yolov5", "--output", str(tmp_path / "no/file.png")) == 1
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_an_error_of_the_container_is_told_with_its_status(
    aws: Aws, runtime: RuntimeStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(aws, runtime, "--text", "x", "--model", "nobody") == 1
    err = capsys.readouterr().err
    assert err.startswith("python -m deploy invoke: the container answered 404: ")
    assert err.endswith("(model_not_found)\n")
    assert err.count("\n") == 1


def test_it_works_without_credentials_and_region_where_a_simulator_answers(
    aws: Aws, runtime: RuntimeStandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    assert invoke(aws, runtime, DIGIT, "--model", "resnet") == 0
    assert "instance 0" in capsys.readouterr().out


def test_a_container_without_aws_is_asked_itself(
    aws: Aws, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    words = ["--model", "resnet", "--parameter", "top_k=1", "--container", server.url + "/"]
    assert aws.deploy("invoke", DIGIT, *words) == 0
    assert capsys.readouterr().out.startswith("resnet version 1\ninstance 0\n  6 ")
    assert aws.deploy("invoke", "--json", '{"instances": ["a", "b"]}', "--model", "bert", "--stream", *words[4:]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0].removeprefix("data: "))["model_name"] == "bert"
    assert aws.deploy("invoke", DIGIT, "--model", "nobody", *words[4:]) == 1
    assert "the container answered 404: " in capsys.readouterr().err
    assert aws.deploy("invoke", DIGIT, "--container", f"http://127.0.0.1:{free_port()}") == 1
    assert "no reply from http://127.0.0.1:" in capsys.readouterr().err
    assert aws.deploy("invoke", DIGIT, "--container", "http://[") == 1
    assert "no reply from http://[/invocations" in capsys.readouterr().err
    assert aws.calls == []


def queue(aws: Aws, **result: Any) -> None:
    """What moto writes for the next asynchronous invocation."""
    url = f"{aws.url}/moto-api/static/sagemaker/async-endpoint-results"
    body = {"region": "eu-west-1", "results": [result]}
    assert requests.post(url, json=body, timeout=PATIENCE).status_code == 201


@pytest.fixture
def bucket(aws: Aws) -> str:
    aws.client("s3").create_bucket(Bucket="inputs", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    return "s3://inputs/here/"


def test_an_asynchronous_result_is_waited_for(aws: Aws, bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    queue(aws, data=json.dumps({"model_name": "m", "model_version": "1", "predictions": [{"embedding": [0.5]}]}))
    assert aws.deploy("invoke", DIGIT, "--model", "m", "--async", bucket) == 0
    assert "1 numbers: 0.5000" in capsys.readouterr().out
    (kept,) = aws.client("s3").list_objects_v2(Bucket="inputs")["Contents"]
    assert kept["Key"].startswith("here/")
    there = aws.client("s3").get_object(Bucket="inputs", Key=kept["Key"])
    assert there["Body"].read() == Path(DIGIT).read_bytes()
    assert there["ContentType"] == "image/png"


def test_an_asynchronous_failure_is_told(aws: Aws, bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    queue(aws, data="the model\n failed", is_failure=True)
    assert aws.deploy("invoke", DIGIT, "--async", bucket) == 1
    assert capsys.readouterr().err.endswith("the request failed: the model failed\n")


def test_a_late_asynchronous_result_says_where_it_will_be(
    aws: Aws, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    queue(aws, data="late")
    aws.while_asleep = [lambda: None] * 6

    def hide() -> None:
        s3 = aws.client("s3")
        for name in [
            each["Name"] for each in s3.list_buckets()["Buckets"] if each["Name"].startswith("sagemaker-output")
        ]:
            s3.delete_object(Bucket=name, Key="response.json")

    def session(profile_name: str | None = None) -> Any:
        made = NotingSession(profile_name)
        made.events.register("after-call.sagemaker-runtime.InvokeEndpointAsync", lambda **_: hide())
        return made

    aws.session = session  # type: ignore[method-assign]
    assert aws.deploy("invoke", DIGIT, "--async", bucket, "--wait", "10") == 1
    assert "no result after 0:00:10; it may still appear at s3://sagemaker-output-" in capsys.readouterr().err


WRONG = {
    "nothing": ([], "give one of FILE, --text and --json"),
    "two bodies": (["--text", "a", "--json", "{}"], "give one of FILE, --text and --json"),
    "no such file": (["/nowhere/x.png"], "/nowhere/x.png cannot be read: No such file or directory"),
    "parameter": (["--text", "a", "--parameter", "top_k"], "--parameter takes NAME=VALUE"),
    "semicolon": (["--text", "a", "--parameter", "a=b;c=d"], "--parameter takes NAME=VALUE"),
    "not ASCII": (["--text", "a", "--model", "modèle"], "must be at most 1024 characters of ASCII"),
    "stream of an archive": (["--text", "a", "--target-model", "x.tar.gz", "--stream"], "have no TargetModel"),
    "no URL": (["--text", "a", "--container", "localhost:8080"], "'localhost:8080' is not a URL: http://HOST:PORT"),
    "no endpoint URL": (["--text", "a", "--endpoint-url", "nonsense"], "'nonsense' is not a URL"),
    "dry container": (["--text", "a", "--container", "http://x", "--dry-run"], "works with neither --async nor"),
    "no S3": (["--text", "a", "--async", "/tmp"], "'/tmp' is not an S3 location"),
}


@pytest.mark.parametrize(("words", "text"), WRONG.values(), ids=WRONG)
def test_a_command_line_that_makes_no_sense_is_refused(
    aws: Aws, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aws.deploy("invoke", *words) == 2
    assert text in capsys.readouterr().err
    assert aws.calls == []


def test_a_body_that_is_too_large_is_for_the_asynchronous_way(
    aws: Aws, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(25 * 1024 * 1024 + 1)
    assert aws.deploy("invoke", str(large)) == 2
    assert "SageMaker allows 26214400; --async allows 1 GB" in capsys.readouterr().err


def test_output_keeps_a_binary_reply(aws: Aws, runtime: RuntimeStandIn, tmp_path: Path) -> None:
    target = tmp_path / "y.npy"
    body = tmp_path / "x.npy"
    np.save(body, np.array([[1.0, 2.0]], dtype=np.float32))
    words = [str(body), "--model", "scale", "--version", "1", "--accept", "application/x-npy", "--output", str(target)]
    assert invoke(aws, runtime, *words) == 0
    assert np.load(io.BytesIO(target.read_bytes())).tolist() == [[2.0, 4.0]]
