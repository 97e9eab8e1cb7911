"""variant against moto's server: a candidate beside the version in service, and what becomes of it."""

from typing import Any

import pytest

from tests.deploy.conftest import Aws
from tests.deploy.shapes import IMAGE

OTHER = ["--image", IMAGE + "1"]


def variants(aws: Aws) -> dict[str, tuple[str, float]]:
    """{variant: (image, weight)} of what is served."""
    sagemaker = aws.client("sagemaker")
    config = sagemaker.describe_endpoint(EndpointName="triton-multi-model")["EndpointConfigName"]
    listed = sagemaker.describe_endpoint_config(EndpointConfigName=config)["ProductionVariants"]
    return {each["VariantName"]: (_image(aws, each["ModelName"]), each["InitialVariantWeight"]) for each in listed}


def _image(aws: Aws, model: str) -> str:
    image: str = aws.client("sagemaker").describe_model(ModelName=model)["PrimaryContainer"]["Image"]
    return image


@pytest.fixture
def served(aws: Aws) -> Aws:
    assert aws.deploy("create", "--image", IMAGE, "--tag", "team=a") == 0
    return aws


def test_a_candidate_gets_its_share_of_the_calls(served: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert served.deploy("variant", "--weight", "10", *OTHER) == 0
    assert variants(served) == {"AllTraffic": (IMAGE, 0.9), "Candidate": (IMAGE + "1", 0.1)}
    capsys.readouterr()
    assert served.deploy("status") == 0
    assert "10% of the calls" in capsys.readouterr().out
    assert served.deploy("variant", "--weight", "40") == 0
    assert variants(served)["Candidate"] == (IMAGE + "1", 0.4)
    (config,) = served.inventory()["configs"]
    arn = served.client("sagemaker").describe_endpoint_config(EndpointConfigName=config)["EndpointConfigArn"]
    assert {"Key": "team", "Value": "a"} in served.client("sagemaker").list_tags(ResourceArn=arn)["Tags"]


@pytest.mark.parametrize(("word", "image"), [("--promote", IMAGE + "1"), ("--remove", IMAGE)])
def test_a_trial_ends_with_one_version(served: Aws, word: str, image: str) -> None:
    assert served.deploy("variant", "--weight", "10", *OTHER) == served.deploy("variant", word) == 0
    assert variants(served) == {"AllTraffic": (image, 1.0)}
    found = served.inventory()
    assert (len(found["models"]), len(found["configs"])) == (1, 1)


def test_the_call_of_a_shadow_has_one_production_variant_and_one_copy(served: Aws) -> None:
    served.calls.clear()
    assert served.deploy("variant", "--shadow", "25", *OTHER) == 0
    (made,) = [parameters for _, name, parameters in served.calls if name == "CreateEndpointConfig"]
    assert [each["InitialVariantWeight"] for each in made["ProductionVariants"]] == [1.0]
    (shadow,) = made["ShadowProductionVariants"]
    assert (shadow["VariantName"], shadow["InitialVariantWeight"]) == ("Candidate", 0.25)


def test_an_update_waits_for_the_end_of_the_trial(served: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert served.deploy("variant", "--weight", "10", *OTHER) == 0
    assert served.deploy("update", "--image", IMAGE + "2") == 1
    assert "'variant --promote' or 'variant --remove' first" in capsys.readouterr().err


WRONG: dict[str, tuple[list[str], list[str], str, int]] = {
    "no difference": ([], ["--weight", "10"], "say what is other in the candidate", 1),
    "nothing to promote": ([], ["--promote"], "there is no candidate", 1),
    "serverless": (["--serverless", "2048"], ["--weight", "10", *OTHER], "has one variant only", 1),
    "asynchronous": (["--async", "s3://b/x/"], ["--shadow", "10", *OTHER], "no shadow variant", 1),
    "all of it": ([], ["--weight", "100", *OTHER], "--weight is a percentage, 1 to 99", 2),
    "promote what": ([], ["--promote", *OTHER], "without other options", 2),
}


@pytest.mark.parametrize(("made", "words", "text", "code"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_tried_is_refused(
    aws: Aws, made: list[str], words: list[str], text: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aws.deploy("create", "--image", IMAGE, *made) == 0
    before: Any = aws.inventory()
    assert aws.deploy("variant", *words) == code
    assert text in capsys.readouterr().err
    assert aws.inventory() == before
