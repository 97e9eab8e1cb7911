"""Tests the table of errors, and the places that show it."""

import json
import re

import pytest

from predictor import create_app
from serving import errors
from serving.errors import (
    CODES,
    KINDS,
    DecodingError,
    InvalidRequest,
    ModelFailed,
    ModelRefused,
    ModelRestarting,
    ServingError,
    rebuilt,
)
from serving.settings.settings import Settings
from tests.test_architecture import ROOT

pytestmark = pytest.mark.unit

NGINX = (ROOT / "nginx.conf").read_text()
STATUSES = {(status, code) for code, row in CODES.items() for status in (row.status, *row.also)}


def codes_of_nginx() -> set[tuple[int, str]]:
    """Return the statuses and codes of nginx's error_page lines."""
    lines = re.findall(r"error_page ([\d ]+?)(?: =(\d+))? /\.error/(\S+?)[/;]", NGINX)
    return {
        (int(status), code.replace("${backend}", backend))
        for statuses, replaced, code in lines
        for status in ([replaced] if replaced else statuses.split())
        for backend in ("frontend", "triton")
    }


def test_define_each_code_in_python_or_in_nginx() -> None:
    assert CODES.keys() == KINDS.keys() | {code for _, code in codes_of_nginx()}
    classes = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, ServingError)
    ]
    assert sorted(kind.code for kind in classes) == sorted(KINDS)


def test_answer_nginx_s_own_errors_by_the_table() -> None:
    assert codes_of_nginx() <= STATUSES
    assert {status for status, _ in STATUSES} & {414, 431} == {
        status for status, _ in codes_of_nginx()
    } & {414, 431}
    with_messages = set(re.findall(r"^ +/\.error/([a-z_]+)", NGINX, re.MULTILINE))
    assert with_messages == {code for _, code in codes_of_nginx()}
    retried = re.search(r"map \$uri \$retry_after { \"~\^/\.error/\((.*)\)\$\" 1; }", NGINX)
    assert retried
    assert set(retried[1].split("|")) == {
        code for code in with_messages if CODES[code].retry_after == 1
    }


def test_list_the_table_of_errors_in_openapi_json() -> None:
    document = create_app(Settings.from_env({})).test_client().get("/openapi.json").get_json()
    responses = document["components"]["responses"]
    lists = {
        int(status): response["description"].removeprefix("code: ")
        for status, response in responses.items()
        if status.isdigit()
    }
    statuses = {str(status) for status in lists}
    assert responses.keys() == statuses | {f"OpenAI{status}" for status in statuses}
    assert {
        (status, code) for status, codes in lists.items() for code in codes.split(", ")
    } == STATUSES
    for path in document["paths"].values():
        for operation in path.values():
            assert operation["responses"].keys() - {"200"} == statuses


def test_list_the_table_of_errors_in_the_docs() -> None:
    rows = [
        f"| {row.status} | `{code}` | {row.when} | {row.remedy} |" for code, row in CODES.items()
    ]
    page = (ROOT / "docs/errors.md").read_text()
    assert re.findall(r"^\| \d{3} \|.*", page, re.MULTILINE) == rows


@pytest.mark.parametrize("code", KINDS)
def test_rebuild_an_error_of_another_process(code: str) -> None:
    own = {
        "decoding_error": DecodingError("no {JPEG}", "image", 3),
        "model_failed": ModelFailed("m", "no model file"),
        "model_refused": ModelRefused("m", "it died", 7),
        "model_restarting": ModelRestarting("m", "it died"),
    }
    error = own[code] if code in own else KINDS[code]("{what}")
    rebuilt_error = rebuilt(**json.loads(json.dumps(error.facts())))
    assert (type(rebuilt_error), str(rebuilt_error)) == (type(error), str(error))
    assert (rebuilt_error.status, rebuilt_error.retry_after) == (error.status, error.retry_after)
    assert "{JPEG}" in str(error) or "'m'" in str(error) or "{what}" in str(error)


def test_send_retry_after_only_if_a_retry_helps() -> None:
    assert InvalidRequest("").retry_after is None
    assert {code for code, row in CODES.items() if row.retry_after} == {
        code for code, row in CODES.items() if row.status == 503 and code != "model_failed"
    }
