"""Tests SageMaker's SDK, versions 2 and 3, and MLflow's deployment client against the simulator
with the real container."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build_engines.build import build
from build_engines.request import Request
from tests.build_engines import trained
from tests.build_engines.trained import Trained
from tests.simulate.sdk_calls import NUMBERS
from tests.simulate.simulation import Simulation
from tests.support.harness import ROOT, link_model, make_scale

pytestmark = pytest.mark.stack

SDKS = {"2": "sdks", "3": "sdk3"}  # folders in .venv into which `make dev` installs them
FOREST = "forest"  # the model for calls that name no model, as MLflow's do


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    model = trained.forest(tmp_path_factory.mktemp("trained"))
    return Trained(model.model, model.file, model.rows[::50])


@pytest.fixture(scope="module")
def simulation(forest: Trained, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    repository = tmp_path_factory.mktemp("model")
    build(Request(FOREST, str(forest.file), repository=repository, allow_pickle=True))
    make_scale(repository)
    link_model(ROOT / "model_repository/resnet", repository)
    with Simulation(
        ROOT / "serve",
        model=repository,
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=FOREST,
        SERVE_LOAD_MODELS=f"{FOREST},scale,resnet",
    ) as running:
        assert running.endpoint.failure == ""
        yield running


def answers(
    simulation: Simulation, forest: Trained, packages: str, module: str, *arguments: str
) -> Any:
    """Run a program that calls the endpoint. Return the answers that it prints."""
    folder = Path(sys.prefix) / packages
    environment = {
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": simulation.url,
        "DO_NOT_TRACK": "true",
        "PYTHONPATH": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-m", f"tests.simulate.{module}", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        input=json.dumps({"rows": forest.lists, "columns": list(forest.rows.columns)}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-5_000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=SDKS)
def sdk(simulation: Simulation, forest: Trained, request: pytest.FixtureRequest) -> Any:
    """Return the answers to all calls of a version of the SDK."""
    return answers(simulation, forest, SDKS[request.param], "sdk_calls", request.param)


def classes(answer: Any) -> list[str]:
    return [prediction["prediction"] for prediction in answer["predictions"]]


def test_answer_rows_of_every_serializer(sdk: Any, forest: Trained) -> None:
    wanted = forest.model.predict(forest.rows).tolist()
    assert len(set(wanted)) > 1
    for name in ("rows", "array", "instances", "records", "frame", "csv", "libsvm"):
        assert classes(sdk[name]) == wanted, name
        assert sdk[name] == sdk["rows"], name
    assert classes(sdk["row"]) == wanted[:1]
    assert [line["prediction"] for line in sdk["lines"]] == wanted
    assert [cells[0] for cells in sdk["csv for csv"]] == wanted


def test_answer_tensors_of_every_serializer(sdk: Any) -> None:
    wanted = (3 * np.array(NUMBERS)).tolist()
    assert sdk["npy"] == wanted
    for name in ("numbers", "tensors", "only tensor"):
        (output,) = sdk[name]["outputs"]
        assert np.reshape(output["data"], output["shape"]).tolist() == wanted, name


def test_answer_a_picture_in_base64(sdk: Any, simulation: Simulation) -> None:
    picture = (ROOT / "model_repository/resnet/example.png").read_bytes()
    named = {"ContentType": "image/png", "CustomAttributes": "model_name=resnet"}
    assert sdk["picture"] == json.loads(simulation.invoke(picture, **named)["Body"].read())


def test_answer_the_deployment_client_of_mlflow(simulation: Simulation, forest: Trained) -> None:
    given = answers(simulation, forest, "sdks", "mlflow_calls")
    wanted = forest.model.predict(forest.rows).tolist()
    assert {name: classes(answer) for name, answer in given.items()} == dict.fromkeys(
        ("frame", "numbered frame", "array", "rows", "command"), wanted
    )
