"""Settings that follow SageMaker's variables: batch transform's limits, and KServe's routes."""

from typing import Any

import pytest

from serving.host.machine import Machine
from serving.settings.setting import SettingsError
from serving.settings.table import Settings

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("variables", "concurrency", "strategy", "payload"),
    [
        ({}, 8, "MULTI_RECORD", 6),
        ({"SERVE_WORKERS": "16"}, 16, "MULTI_RECORD", 6),
        ({"SERVE_MAX_CONCURRENCY": "3"}, 3, "MULTI_RECORD", 6),
        ({"SERVE_MAX_BODY_MB": "2.5"}, 8, "MULTI_RECORD", 2),
        ({"SERVE_MAX_BODY_MB": "0.5"}, 8, "MULTI_RECORD", 1),
        ({"SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "40"}, 40, "MULTI_RECORD", 2),
        ({"SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "100"}, 100, "MULTI_RECORD", 1),
        ({"SAGEMAKER_MAX_PAYLOAD_IN_MB": "100"}, 1, "MULTI_RECORD", 100),
        ({"SAGEMAKER_MAX_PAYLOAD_IN_MB": "30"}, 3, "MULTI_RECORD", 30),
        ({"SAGEMAKER_MAX_PAYLOAD_IN_MB": "0"}, 8, "MULTI_RECORD", 0),
        ({"SAGEMAKER_BATCH_STRATEGY": "SINGLE_RECORD"}, 8, "SINGLE_RECORD", 6),
        ({"SAGEMAKER_MAX_PAYLOAD_IN_MB": "25", "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "4"}, 4, "MULTI_RECORD", 25),
    ],
)
def test_what_is_left_open_follows_the_machine_and_the_other_limits(
    variables: dict[str, str], concurrency: int, strategy: str, payload: int
) -> None:
    settings = Settings.from_env(variables, Machine(cpus=4.0, memory=16 * 1024**3, gpu=False))
    told = settings.execution_parameters
    assert told == {"MaxConcurrentTransforms": concurrency, "BatchStrategy": strategy, "MaxPayloadInMB": payload}
    assert concurrency * payload <= 100
    assert settings.max_body_mb >= payload or settings.max_body_mb < 1


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [({}, 60), ({"SAGEMAKER_BATCH": "true"}, 600), ({"SAGEMAKER_BATCH": "true", "MODEL_SERVER_TIMEOUT": "90"}, 90)],
)
def test_a_batch_transform_job_may_take_as_long_as_it_waits(variables: dict[str, str], seconds: float) -> None:
    settings = Settings.from_env(variables)
    assert settings.request_timeout == seconds
    assert Settings.from_env(settings.environment()).request_timeout == seconds


@pytest.mark.parametrize(("payload", "limit"), [("0", 1024), ("2", 25), ("60", 60)])
def test_the_payload_that_is_told_is_let_in(payload: str, limit: float) -> None:
    assert Settings.from_env({"SAGEMAKER_MAX_PAYLOAD_IN_MB": payload}).max_body_mb == limit


def test_more_than_100_mb_at_once_is_refused_at_the_start() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({"SAGEMAKER_MAX_PAYLOAD_IN_MB": "20", "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "6"})
    assert "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS=6" in str(caught.value)
    assert "SAGEMAKER_MAX_PAYLOAD_IN_MB=20" in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "open_"),
    [
        ({}, True),
        ({"PORT": "80", "SERVE_WORKERS": "1"}, True),
        ({"SAGEMAKER_BIND_TO_PORT": "80"}, False),
        ({"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "x"}, False),
        ({"SAGEMAKER_MULTI_MODEL": "true"}, False),
        ({"SAGEMAKER_REGION": "eu-west-1"}, False),
        ({"SAGEMAKER_REGION": ""}, True),
        ({"SAGEMAKER_REGION": "eu-west-1", "SERVE_KSERVE": "True"}, True),
        ({"SERVE_KSERVE": "false"}, False),
    ],
)
def test_it_is_on_unless_a_variable_of_sagemaker_is_set(variables: dict[str, Any], open_: bool) -> None:
    settings = Settings.from_env(variables)
    assert settings.kserve == str(open_).lower()
    assert Settings.from_env(settings.environment()).kserve == settings.kserve
