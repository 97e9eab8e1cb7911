"""Tests the settings: every row, every mistake, that a child process reads the same values as its
parent, and defaults that follow from SageMaker's variables."""

from pathlib import Path
from typing import Any

import pytest

from serving.host.machine import Machine
from serving.named_value import Names
from serving.settings.setting import Setting, SettingsError
from serving.settings.settings import AT_START, ON_CHANGE, ON_DEMAND, ON_POST, SETTINGS, Settings

pytestmark = pytest.mark.unit

MACHINE = Machine(cpus=4.0, memory=16 * 1024**3, gpu=False)
# settings that contradict each other if each has its maximum
CONTRADICT = ("port", "grpc_port", "batch_payload_mb", "batch_concurrency", "models")
# for each setting with a special format: a text, its value, and an invalid text
FORMS: dict[str, tuple[str, Any, str]] = {
    "origins": (
        "https://a.example, http://[::1]:3000",
        ("https://a.example", "http://[::1]:3000"),
        "*",
    ),
    "safe_port_range": ("23000-23999", (23000, 23999), "23000"),
    "model_repositories": ("/models:/more", (Path("/models"), Path("/more")), "/models:"),
    "log_level": ("WARNING", "warning", "loud"),
    "management_secret": ("X-Key=abc", "X-Key=abc", "abc"),
    "additional_arguments": ("--a='b c' d", ("--a=b c", "d"), "'"),
    "log_verbose": ("true", 1, "loud"),
    "kserve": ("TRUE", "true", "perhaps"),
    "page": ("1", "true", "perhaps"),
    "reload": ("on", "true", "maybe"),
    "log_info": ("0", "false", "maybe"),
    "log_warning": ("yes", "true", "3"),
}


def samples(row: Setting) -> tuple[str, Any, str | None]:
    """Return a text, its value, and an invalid text (None: every text is valid)."""
    if row.name in FORMS:
        return FORMS[row.name]
    if row.choices:
        return row.choices[-1], row.choices[-1], "none of them"
    if isinstance(row.default, bool):
        return str(not row.default), not row.default, "maybe"
    if isinstance(row.default, int | float):
        assert row.minimum is not None and row.maximum is not None, "every number is bounded"
        return f"{row.maximum}", row.maximum, f"{row.minimum - 1}"
    return "a", ("a",) if isinstance(row.default, Names) else type(row.default)("a"), None


def read(machine: Machine = MACHINE, /, **environ: str) -> Settings:
    return Settings.from_env(environ, machine)


def test_parse_each_form_of_a_setting() -> None:
    assert set(FORMS) == {row.name for row in SETTINGS if row.parser}


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.name)
def test_read_each_setting_from_each_of_its_variables(row: Setting) -> None:
    text, value, _ = samples(row)
    for variable in row.variables:
        assert row.read({variable: f" {text} "}) == value


@pytest.mark.parametrize(
    "row", [row for row in SETTINGS if samples(row)[2]], ids=lambda row: row.name
)
def test_name_variable_value_and_allowed_values_of_a_mistake(row: Setting) -> None:
    wrong, variable = samples(row)[2] or "", row.variables[-1]
    with pytest.raises(SettingsError) as caught:
        read(**{variable: wrong})
    shown = "…" if row.secret else repr(wrong)
    assert caught.value.mistakes == (f"{variable}={shown} is wrong: it must be {row.expected()}",)


def test_report_all_mistakes_together() -> None:
    wrong = {row.variables[0]: text for row in SETTINGS if (text := samples(row)[2])}
    with pytest.raises(SettingsError) as caught:
        read(**wrong)
    assert [line.partition("=")[0] for line in caught.value.mistakes] == list(wrong)
    assert str(caught.value).splitlines() == list(caught.value.mistakes)


def test_ignore_folders_where_the_platform_loads_models() -> None:
    with pytest.raises(SettingsError, match=r"SERVE_RELOAD.*SAGEMAKER_MULTI_MODEL"):
        read(SERVE_RELOAD="true", SAGEMAKER_MULTI_MODEL="true")
    assert read(SERVE_RELOAD="auto", SAGEMAKER_MULTI_MODEL="true").policy == ON_POST

    assert read(SERVE_RELOAD="auto").policy == ON_CHANGE
    assert read().policy == AT_START
    assert read(SERVE_MODELS="on-demand", SERVE_RELOAD="auto").policy == ON_DEMAND


@pytest.mark.parametrize(
    "other",
    [
        {"SAGEMAKER_MULTI_MODEL": "true"},
        {"SERVE_KSERVE": "trusted"},
        {"SERVE_RELOAD": "true"},
        {"SERVE_MODEL_REPOSITORY": "/a:/b"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_refuse_settings_that_contradict_loads_on_demand(other: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=f"(?=.*SERVE_MODELS=on-demand).*{next(iter(other))}"):
        read(SERVE_MODELS="on-demand", **other)


def test_refuse_triton_options_that_belong_to_the_manager() -> None:
    with pytest.raises(SettingsError, match="SERVE_LOAD_MODELS"):
        read(SAGEMAKER_TRITON_ADDITIONAL_ARGS="--model-control-mode=poll")


def test_use_each_variable_in_one_row_only() -> None:
    variables = [variable for row in SETTINGS for variable in row.variables]
    assert len(set(variables)) == len(variables)


def test_take_the_first_variable_that_is_not_empty() -> None:
    assert read(SAGEMAKER_BIND_TO_PORT="1", PORT="2").port == 1
    assert read(SAGEMAKER_BIND_TO_PORT=" ", PORT="2").port == 2
    assert read(SAGEMAKER_BIND_TO_PORT="", PORT="").port == 8080


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {row.variables[-1]: FORMS[row.name][0] for row in SETTINGS if row.name in FORMS},
        {
            row.variables[-1]: samples(row)[0]
            for row in SETTINGS
            if row.name not in (*FORMS, *CONTRADICT)
        },
        {
            "SERVE_REQUEST_TIMEOUT": "0.1e1",
            "SERVE_MAX_BODY_MB": "5.7220458984375",
            "SERVE_START_TIMEOUT": "33.3",
        },
    ],
)
def test_pass_the_same_settings_to_a_child(environ: dict[str, str]) -> None:
    settings = read(**environ)
    other_machine = Machine(cpus=64.0, memory=1024**4, gpu=True)
    assert Settings.from_env(settings.environment(), other_machine) == settings


@pytest.mark.parametrize("seconds", ["1", "2.5", "60", "3600"])
def test_let_nginx_outlast_gunicorn_and_gunicorn_outlast_grpc(seconds: str) -> None:
    settings = read(SERVE_REQUEST_TIMEOUT=seconds)
    assert settings.request_timeout > settings.grpc_timeout > 0
    assert settings.request_timeout == float(seconds)


@pytest.mark.parametrize(
    ("cpus", "memory", "workers"),
    [
        (0.5, 16, 1),
        (1.0, 16, 1),
        (1.5, 16, 2),
        (8.0, 16, 8),
        (8.0, 1, 2),
        (8.0, 0.25, 1),
        (64.0, 512, 16),
    ],
)
def test_derive_workers_from_processors_and_memory(
    cpus: float, memory: float, workers: int
) -> None:
    assert read(Machine(cpus, int(memory * 1024**3), gpu=False)).workers == workers


@pytest.mark.parametrize("workers", ["1", "2", "3", "7", "16", "256"])
@pytest.mark.parametrize("concurrency", ["0", "1", "2", "128", "1000"])
def test_keep_a_thread_of_each_worker_free_for_ping(workers: str, concurrency: str) -> None:
    settings = read(SERVE_WORKERS=workers, SERVE_MAX_CONCURRENCY=concurrency)
    assert settings.workers * (settings.threads - 1) >= settings.max_concurrency >= 1


@pytest.mark.parametrize(
    ("workers", "concurrency"), [("1", 128), ("2", 128), ("8", 512), ("16", 1024), ("64", 1024)]
)
def test_limit_requests_to_what_the_workers_answer_in_time(workers: str, concurrency: int) -> None:
    assert read(SERVE_WORKERS=workers).max_concurrency == concurrency


@pytest.mark.parametrize(("cpus", "threads"), [(0.5, 1), (1.5, 1), (4.0, 4), (64.0, 64)])
def test_derive_a_model_s_threads_from_the_processors(cpus: float, threads: int) -> None:
    assert read(Machine(cpus, 1024**4, gpu=False)).inference_threads == threads


def test_choose_the_gpu_if_there_is_one() -> None:
    gpu = Machine(cpus=1.0, memory=1024**3, gpu=True)
    assert (read().device, read(gpu).device, read(gpu, SERVE_DEVICE="cpu").device) == (
        "cpu",
        "gpu",
        "cpu",
    )


@pytest.mark.parametrize(
    ("text", "level"),
    [("20", "info"), ("0", "debug"), ("25", "warning"), ("50", "critical"), ("Debug", "debug")],
)
def test_accept_a_number_as_log_level(text: str, level: str) -> None:
    assert read(SAGEMAKER_CONTAINER_LOG_LEVEL=text).log_level == level


def test_read_mb_as_1024_times_1024_bytes_and_0_as_the_maximum() -> None:
    assert read().max_body_bytes == 26_214_400
    assert read(SERVE_MAX_BODY_MB="0.5").max_body_bytes == 524_288
    assert read(SAGEMAKER_MAX_PAYLOAD_IN_MB="0").max_body_bytes == 1024**3


def test_make_a_relative_repository_absolute() -> None:
    assert read(SERVE_MODEL_REPOSITORY="models").model_repositories == (Path.cwd() / "models",)


@pytest.mark.parametrize("url", ["s3://models", "gs://models/of/team", "az://models/a.b"])
def test_pass_the_url_of_a_bucket_to_the_children(url: str) -> None:
    settings = read(SERVE_MODELS="on-demand", SERVE_MODEL_REPOSITORY=url)
    child = read(**settings.environment())
    assert settings.bucket == child.bucket == url
    assert read(SERVE_MODEL_REPOSITORY="models").bucket == ""


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///models",
        "s3://a?b",
        "s3://key:word@a",
        "https://a/models",
        "/a:s3://b",
        "s3://b/c:/a",
    ],
)
def test_refuse_values_that_are_not_the_url_of_a_bucket(url: str) -> None:
    with pytest.raises(SettingsError, match=r"the URL of a bucket \(s3://, gs:// or az://\)"):
        read(SERVE_MODELS="on-demand", SERVE_MODEL_REPOSITORY=url)


def test_refuse_a_bucket_from_which_models_are_not_loaded_on_demand() -> None:
    with pytest.raises(SettingsError, match="SERVE_MODELS=on-demand: set it too"):
        read(SERVE_MODEL_REPOSITORY="s3://models")


@pytest.mark.parametrize(
    ("variables", "concurrency", "strategy", "payload"),
    [
        ({}, 8, "MULTI_RECORD", 6),
        ({"SERVE_WORKERS": "16"}, 16, "MULTI_RECORD", 6),
        ({"SERVE_MAX_CONCURRENCY": "3"}, 3, "MULTI_RECORD", 6),
        ({"SERVE_MAX_BODY_MB": "2.5"}, 8, "MULTI_RECORD", 2),
        ({"SERVE_MAX_BODY_MB": "0.5"}, 8, "MULTI_RECORD", 1),
        ({"SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "100"}, 100, "MULTI_RECORD", 1),
        ({"SAGEMAKER_MAX_PAYLOAD_IN_MB": "100"}, 1, "MULTI_RECORD", 100),
        ({"SAGEMAKER_MAX_PAYLOAD_IN_MB": "0"}, 8, "MULTI_RECORD", 0),
        ({"SAGEMAKER_BATCH_STRATEGY": "SINGLE_RECORD"}, 8, "SINGLE_RECORD", 6),
        (
            {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "25", "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "4"},
            4,
            "MULTI_RECORD",
            25,
        ),
    ],
)
def test_derive_defaults_from_other_limits(
    variables: dict[str, str], concurrency: int, strategy: str, payload: int
) -> None:
    settings = Settings.from_env(variables, Machine(cpus=4.0, memory=16 * 1024**3, gpu=False))
    parameters = settings.execution_parameters
    assert parameters == {
        "MaxConcurrentTransforms": concurrency,
        "BatchStrategy": strategy,
        "MaxPayloadInMB": payload,
    }
    assert concurrency * payload <= 100
    assert settings.max_body_mb >= payload or settings.max_body_mb < 1


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, 60),
        ({"SAGEMAKER_BATCH": "true"}, 600),
        ({"SAGEMAKER_BATCH": "true", "MODEL_SERVER_TIMEOUT": "90"}, 90),
    ],
)
def test_give_a_batch_transform_job_its_whole_timeout(
    variables: dict[str, str], seconds: float
) -> None:
    settings = Settings.from_env(variables)
    assert settings.request_timeout == seconds
    assert Settings.from_env(settings.environment()).request_timeout == seconds


@pytest.mark.parametrize(("payload", "limit"), [("0", 1024), ("2", 25), ("60", 60)])
def test_accept_the_payload_that_is_announced(payload: str, limit: float) -> None:
    assert Settings.from_env({"SAGEMAKER_MAX_PAYLOAD_IN_MB": payload}).max_body_mb == limit


def test_refuse_more_than_100_mb_at_once_at_the_start() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env(
            {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "20", "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "6"}
        )
    assert "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS=6" in str(caught.value)
    assert "SAGEMAKER_MAX_PAYLOAD_IN_MB=20" in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "open_"),
    [
        ({}, True),
        ({"PORT": "80", "SERVE_WORKERS": "1"}, True),
        ({"SAGEMAKER_MULTI_MODEL": "true"}, False),
        ({"SAGEMAKER_REGION": "eu-west-1"}, False),
        ({"SAGEMAKER_REGION": ""}, True),
        ({"SAGEMAKER_REGION": "eu-west-1", "SERVE_KSERVE": "True"}, True),
        ({"SERVE_KSERVE": "false"}, False),
    ],
)
def test_turn_the_page_on_unless_a_sagemaker_variable_is_set(
    variables: dict[str, Any], open_: bool
) -> None:
    settings = Settings.from_env(variables)
    assert settings.kserve == str(open_).lower()
    assert Settings.from_env(settings.environment()).kserve == settings.kserve
