"""Tests the command invoke against the simulator's runtime API, with a real server behind it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from deploy.__main__ import main
from tests.simulate.simulation import Simulation
from tests.support.account import Account, printed
from tests.support.harness import ROOT, link_model

pytestmark = pytest.mark.stack

DIGIT = str(ROOT / "model_repository/resnet/example.png")
PAGE = str(ROOT / "model_repository/yolov5/example.jpg")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    repository = tmp_path_factory.mktemp("model")
    for name in ("resnet", "yolov5", "bert"):
        link_model(ROOT / "model_repository" / name, repository)
    with Simulation(ROOT / "serve", model=repository) as running:
        yield running.url


@pytest.fixture(autouse=True)
def without_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove AWS credentials and the region, as on a machine that has only the simulator."""
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_PROFILE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


def invoke(url: str, *words: str) -> int:
    return main(["invoke", *words, "--endpoint-url", url])


def test_send_a_file_with_model_version_and_parameters(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(url, DIGIT, "--model", "resnet", "--version", "1", "--parameter", "top_k=2") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["model_name"], document["model_version"]) == ("resnet", "1")
    assert [each["label"] for each in document["predictions"][0]["classes"]] == ["6", "0"]


def test_suggest_the_option_for_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["invoke", '{"inputs": [1]}', "--region", "eu-west-1"]) == 2
    assert "pass JSON with --json" in capsys.readouterr().err


def test_say_how_to_try_a_dry_run_without_an_account(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", "--dry-run", "--region", "eu-west-1"]) == 1
    assert "without an account" in capsys.readouterr().err


def test_send_text_and_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--text", "A man is eating food."],
        ["--json", '{"instances": ["A man is eating food."]}'],
    ):
        assert invoke(url, *words, "--model", "bert") == 0
        assert len(json.loads(capsys.readouterr().out)["predictions"][0]["embedding"]) == 384


@pytest.mark.parametrize(("name", "form"), [("found.png", "PNG"), ("found.JPG", "JPEG")])
def test_ask_for_a_picture_if_an_output_file_is_named(
    url: str, tmp_path: Path, name: str, form: str
) -> None:
    assert invoke(url, PAGE, "--model", "yolov5", "--output", str(tmp_path / name)) == 0
    with Image.open(tmp_path / name) as drawn, Image.open(PAGE) as plain:
        assert (drawn.format, drawn.size) == (form, plain.size)


def test_require_a_file_for_a_picture(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(url, PAGE, "--model", "yolov5", "--accept", "image/png") == 1
    assert "--output" in capsys.readouterr().err
    assert invoke(url, PAGE, "--model", "yolov5", "--output", str(tmp_path / "no/file.png")) == 2


def test_derive_the_content_type_from_the_suffix(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('"one"\n"two"\n')
    assert invoke(url, str(lines), "--model", "bert") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    unknown = tmp_path / "digit"
    unknown.write_bytes(Path(DIGIT).read_bytes())
    assert invoke(url, str(unknown), "--model", "resnet") == 0


def test_print_a_stream(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(url, "--json", '{"instances": ["ä", "b"]}', "--model", "bert", "--stream") == 0
    events = [line for line in capsys.readouterr().out.splitlines() if line.startswith("data: ")]
    assert [len(json.loads(line[6:])["predictions"]) for line in events] == [2]


def test_keep_status_and_code_of_an_error_of_the_container(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(url, "--text", "x", "--model", "nobody") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert " 404: " in line
    assert line.endswith("(model_not_found)")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["/nowhere"],
        ["--text", "x", "--parameter", "a"],
        ["--text", "x", "--stream", "--output", "reply"],
    ],
)
def test_refuse_wrong_options(words: list[str]) -> None:
    assert invoke("http://127.0.0.1:9", *words) == 2


def test_add_fields_from_the_configuration(
    aws: Account, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "component.yaml"
    file.write_text("InvokeEndpoint: {InferenceComponentName: bert}")
    words = f"invoke --text hello --target-model bert.tar.gz --config {file} --dry-run"
    assert aws.deploy(*words.split()) == 0
    ((_, operation, parameters),) = printed(capsys.readouterr().out)
    assert operation == "InvokeEndpoint"
    assert (parameters["InferenceComponentName"], parameters["TargetModel"]) == (
        "bert",
        "bert.tar.gz",
    )
