"""/openapi.json is valid, has every route, client and error, and calls nothing."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from clients.bert import TASKS
from predictor import create_app
from serving.bodies import schemas
from serving.clients import families
from serving.errors import InvalidRequest
from serving.settings.table import Settings
from tests.support.harness import tensor

pytestmark = pytest.mark.stack

SHAPES = {
    "Flat",
    "Input",
    "InputParameters",
    "Inputs",
    "Load",
    "Output",
    "OutputParameters",
    "Payload",
    "Tensors",
}
MODELS = tuple(f"model_{number}" for number in range(140))


class Unreachable:
    """A gateway to Triton that fails the test if anything except its timeout is used."""

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
    variables = {
        "SERVE_MODEL_REPOSITORY": str(tmp_path / "models"),
        "SERVE_LOAD_MODELS": ",".join(MODELS),
    }
    return document(make_app(tmp_path, **variables))


@pytest.mark.parametrize(
    "variables", [{}, {"SAGEMAKER_MULTI_MODEL": "true"}, {"SERVE_PAGE": "true"}]
)
def test_list_every_route(tmp_path: Path, variables: dict[str, str]) -> None:
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


def test_describe_140_models_without_calling_them(described: Any) -> None:
    schemas = described["components"]["schemas"]
    assert schemas.keys() == {*families(), "Error", *SHAPES}
    assert schemas["resnet"]["properties"]["parameters"]["properties"]["top_k"]["type"] == "integer"
    of_texts = schemas["bert"]["properties"]["parameters"]["properties"]
    assert of_texts.keys() == {
        parameter.name for task in TASKS.values() for parameter in task.parameters
    }
    content = described["paths"]["/invocations"]["post"]["requestBody"]["content"][
        "application/json"
    ]
    assert {"bert", "resnet", "yolov5"} <= content["examples"].keys()
    for name, example in content["examples"].items():
        Draft202012Validator(described | {"$ref": f"#/components/schemas/{name}"}).validate(
            example["value"]
        )


TENSOR = tensor([1], [1])
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("Tensors", {"inputs": [TENSOR]}),
    (
        "Tensors",
        {
            "inputs": [TENSOR | {"parameters": {"binary_data_size": 4}}],
            "outputs": [{"name": "y"}],
            "id": "1",
        },
    ),
    (
        "Tensors",
        {
            "inputs": [TENSOR],
            "model_name": "m",
            "model_version": 2,
            "parameters": {"p": 1},
            "more": {},
        },
    ),
    ("Tensors", {"inputs": [TENSOR | {"shape": [-1]}]}),
    ("Tensors", {"inputs": [TENSOR | {"shape": [1] * 33}]}),
    ("Tensors", {"inputs": [TENSOR | {"shapes": [1]}]}),
    ("Tensors", {"inputs": [{"name": "x", "shape": [1]}]}),
    (
        "Tensors",
        {"inputs": [TENSOR], "outputs": [{"name": "y", "parameters": {"classification": 0}}]},
    ),
    ("Tensors", {"inputs": [TENSOR], "id": 1}),
    ("Tensors", {"inputs": {}}),
    ("Inputs", {"inputs": "a", "parameters": None}),
    ("Inputs", {"inputs": "a", "parameters": []}),
    ("Inputs", {"inputs": "a", "top_k": 1}),
    ("Payload", {"modelname": "m", "payload": {"text": "a"}}),
    ("Payload", {"modelname": ["m"], "payload": {"text": "a"}}),
    ("Flat", {"text_input": "a", "id": 7, "temperature": 0.5}),
    ("Flat", {"text_input": "a", "id": 7.5}),
    ("Load", {"model_name": "m", "url": "/m"}),
    ("Load", {"model_name": "m"}),
]


@pytest.mark.parametrize(("shape", "body"), BODIES)
def test_accept_bodies_exactly_as_the_schema_says(
    described: Any, shape: str, body: dict[str, Any]
) -> None:
    """An independent validator decides by the published schema."""
    allowed = Draft202012Validator(described | {"$ref": f"#/components/schemas/{shape}"}).is_valid(
        body
    )
    if allowed:
        schemas.read(getattr(schemas, shape), json.dumps(body).encode())
    else:
        with pytest.raises(InvalidRequest):
            schemas.read(getattr(schemas, shape), json.dumps(body).encode())
