"""Tests that /openapi.json is valid, lists every route, client and error, and calls no model, and
that a server accepts what it allows."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from clients.text import TASKS
from predictor import create_app
from serving.bodies import schemas
from serving.clients import client_names
from serving.errors import InvalidRequest
from serving.front.openapi import APIS
from serving.settings.settings import Settings
from tests.support.harness import ROOT, Server, make_scale, module_server, tensor
from tests.support.streaming_models import make_teller

pytestmark = pytest.mark.stack

SHAPES = {
    "DataframeRecords",
    "DataframeSplit",
    "Document",
    "Embed",
    "Embeddings",
    "Flat",
    "Frame",
    "Input",
    "InputParameters",
    "Inputs",
    "Load",
    "Output",
    "OutputParameters",
    "Payload",
    "Pipeline",
    "Predict",
    "RepositoryIndex",
    "Rerank",
    "Sentences",
    "Similarity",
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


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("described")
    for name in MODELS:
        (folder / "models" / name / "1").mkdir(parents=True)
    variables = {
        "SERVE_MODEL_REPOSITORY": str(folder / "models"),
        "SERVE_LOAD_MODELS": ",".join(MODELS),
    }
    return document(make_app(folder, **variables))


@pytest.mark.parametrize(
    "variables", [{}, {"SAGEMAKER_MULTI_MODEL": "true"}, {"SERVE_PAGE": "true"}]
)
def test_list_every_route(tmp_path: Path, variables: dict[str, str]) -> None:
    app = make_app(tmp_path, **variables)
    paths = document(app)["paths"]
    documented = {(path, method.upper()) for path, methods in paths.items() for method in methods}
    wanted = {
        (re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), method)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if not rule.rule.startswith("/docs/") and rule.endpoint != "examples.answer_example"
    }
    assert documented == wanted


@pytest.mark.parametrize("doors", ["true", "false"])
def test_close_the_routes_of_other_apis_by_a_setting(tmp_path: Path, doors: str) -> None:
    paths = document(make_app(tmp_path, SERVE_DOORS=doors))["paths"]
    others = {"/v1/models", "/v1/models/{name}", "/v1/models/{name}:predict", *APIS}
    assert (paths.keys() >= others) == (doors == "true")
    assert (paths.keys().isdisjoint(others)) == (doors == "false")
    assert "/v2/repository/index" in paths


def test_describe_140_models_without_calling_them(described: Any) -> None:
    schemas = described["components"]["schemas"]
    assert schemas.keys() == {*client_names(), "Error", "OpenAIError", *SHAPES}
    assert (
        schemas["image_classification"]["properties"]["parameters"]["properties"]["top_k"]["type"]
        == "integer"
    )
    of_texts = schemas["text"]["properties"]["parameters"]["properties"]
    of_tasks = {parameter.name for task in TASKS.values() for parameter in task.parameters}
    assert of_texts.keys() == {"truncate", *of_tasks}
    content = described["paths"]["/invocations"]["post"]["requestBody"]["content"][
        "application/json"
    ]
    assert {"text", "image_classification", "object_detection"} <= content["examples"].keys()
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
    ("DataframeSplit", {"dataframe_split": {"columns": ["a"], "data": [[1]], "index": [0]}}),
    ("DataframeSplit", {"dataframe_split": {"columns": ["a"], "rows": [[1]]}}),
    ("DataframeRecords", {"dataframe_records": [{"a": 1}], "parameters": {"p": 1}}),
    ("DataframeRecords", {"dataframe_records": {"a": 1}}),
    ("Payload", {"modelname": "m", "payload": {"text": "a"}}),
    ("Payload", {"modelname": ["m"], "payload": {"text": "a"}}),
    ("Flat", {"text_input": "a", "id": 7, "temperature": 0.5}),
    ("Flat", {"text_input": "a", "id": 7.5}),
    ("Tensors", {"inputs": [TENSOR | {"shape": [2**63]}]}),
    ("Tensors", {"inputs": [TENSOR], "model_name": "m", "modelname": "n"}),
    ("Flat", {"text_input": "a", "model_name": "m", "modelname": "n"}),
    ("Load", {"model_name": "m", "url": "/m"}),
    ("Load", {"model_name": "m"}),
]


@pytest.mark.parametrize(("shape", "body"), BODIES)
def test_accept_bodies_exactly_as_the_schema_says(
    described: Any, shape: str, body: dict[str, Any]
) -> None:
    """An independent validator decides with the published schema."""
    allowed = Draft202012Validator(described | {"$ref": f"#/components/schemas/{shape}"}).is_valid(
        body
    )
    read = partial(schemas.read, getattr(schemas, shape), json.dumps(body).encode())
    if allowed:
        read()
        return
    with pytest.raises(InvalidRequest):
        value = read()
        value.target()


@pytest.mark.parametrize("body", [{}, {"id": "1"}, {"parameters": {"p": 1}, "model_name": "m"}])
def test_describe_no_flat_body_without_an_input(described: Any, body: dict[str, Any]) -> None:
    flat = Draft202012Validator(described | {"$ref": "#/components/schemas/Flat"})
    assert not flat.is_valid(body)
    assert flat.is_valid(body | {"x": 1})


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in the document."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from parts(each)


def test_describe_the_items_of_every_array(described: Any) -> None:
    """Client generators drop a schema if the items of an array are not described."""
    arrays = [part for part in parts(described) if part.get("type") == "array"]
    assert arrays and not [array for array in arrays if "items" not in array]
    instances = {
        "image_classification": ({"b64": "eA=="}, "eA=="),
        "text": ("a text", 5),
        "table": ([1, "a"], "1,a"),
    }
    for name, (right, wrong) in instances.items():
        validator = Draft202012Validator(described | {"$ref": f"#/components/schemas/{name}"})
        assert validator.is_valid({"instances": [right]})
        assert not validator.is_valid({"instances": [wrong]})


def test_describe_no_body_that_is_empty_or_needs_a_header(described: Any) -> None:
    content = described["paths"]["/invocations"]["post"]["requestBody"]["content"]
    assert {kind for kind, about in content.items() if about["schema"].get("minLength") != 1} == {
        "application/json"
    }
    infer = described["paths"]["/v2/models/{name}/infer"]["post"]["requestBody"]["content"]
    assert list(infer) == ["application/json"]


server = module_server(make_scale, make_teller)
# The document does not list the models, so /invocations may refuse a body that names no model, or
# whose instances do not fit the model that it names.
SCHEMATHESIS = """
[[operations]]
include-name = "POST /invocations"
[operations.checks]
positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "415"]
[[operations]]
include-tag = "other_apis"
[operations.checks]
positive_data_acceptance.expected-statuses = ["2xx", "400", "404"]
"""


def test_answer_generated_requests_as_the_document_says(server: Server, tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(SCHEMATHESIS)
    program = str(Path(sys.executable).with_name("schemathesis"))
    options = ["--checks=all", "--seed=1", "--max-examples=20", "--no-shrink", "--no-color"]
    run = subprocess.run(
        [program, f"--config-file={config}", "run", f"{server.url}/openapi.json", *options],
        cwd=tmp_path,
        env=os.environ
        | {"SCHEMATHESIS_HOOKS": "tests.support.openapi_hooks", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-10_000:] + run.stderr
    assert re.search(r"Tested: +33", run.stdout), run.stdout
