"""/openapi.json is valid, has every route, client and error, and calls nothing."""

import re
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from clients.bert import TASKS
from predictor import create_app
from serving.clients import families
from serving.settings.table import Settings

pytestmark = pytest.mark.stack

MODELS = tuple(f"model_{number}" for number in range(140))


class Unreachable:
    """A gateway to Triton that fails the test if anything but its timeout is used."""

    timeout = 60.0

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the gateway's {name} was used")


def make_app(folder: Path, **variables: str) -> Flask:
    app = create_app(Settings.from_env({"SERVE_RUN_DIR": str(folder), **variables}))
    services = app.extensions["serving"]
    services.gateway = services.registry.gateway = Unreachable()
    return app


def document(app: Flask) -> Any:
    reply = app.test_client().get("/openapi.json")
    assert reply.status_code == 200
    shown: Any = reply.json
    validate(shown)
    return shown


@pytest.fixture
def described(tmp_path: Path) -> Any:
    for name in MODELS:
        (tmp_path / "models" / name / "1").mkdir(parents=True)
    variables = {"SERVE_MODEL_REPOSITORY": str(tmp_path / "models"), "SERVE_LOAD_MODELS": ",".join(MODELS)}
    return document(make_app(tmp_path, **variables))


@pytest.mark.parametrize("variables", [{}, {"SAGEMAKER_MULTI_MODEL": "true"}, {"SERVE_PAGE": "true"}])
def test_it_has_every_route(tmp_path: Path, variables: dict[str, str]) -> None:
    app = make_app(tmp_path, **variables)
    paths = document(app)["paths"]
    documented = {(path, method.upper()) for path, methods in paths.items() for method in methods}
    wanted = {
        (re.sub(r"<(?:path:)?(\w+)>", r"{\1}", rule.rule), method)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if not rule.rule.startswith("/docs/") and rule.endpoint != "examples.answer_example"
    }
    assert documented == wanted


def test_with_140_models_it_has_each_client_with_its_parameters_and_calls_nothing(described: Any) -> None:
    schemas = described["components"]["schemas"]
    assert schemas.keys() == {*families(), "Error", "Tensors"}
    assert schemas["resnet"]["properties"]["parameters"]["properties"]["top_k"]["type"] == "integer"
    of_texts = schemas["bert"]["properties"]["parameters"]["properties"]
    assert of_texts.keys() == {parameter.name for task in TASKS.values() for parameter in task.parameters}
    content = described["paths"]["/invocations"]["post"]["requestBody"]["content"]["application/json"]
    assert {"bert", "resnet", "yolov5"} <= content["examples"].keys()
    for name, example in content["examples"].items():
        Draft202012Validator(described | {"$ref": f"#/components/schemas/{name}"}).validate(example["value"])
