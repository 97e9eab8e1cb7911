"""Calls an endpoint with MLflow's deployment client and its command line, and prints the answers as
JSON. The rows of a table come from standard input."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from click.testing import CliRunner
from mlflow.deployments import get_deploy_client
from mlflow.deployments.cli import commands

TARGET = "sagemaker:/us-east-1"
ENDPOINT = "desk"


def command(frame: pd.DataFrame) -> Any:
    """Return the output of `mlflow deployments predict`."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "input.json"
        frame.to_json(path)
        options = ["--target", TARGET, "--name", ENDPOINT, "--input-path", str(path)]
        done = CliRunner().invoke(commands, ["predict", *options], catch_exceptions=False)
    return json.loads(done.stdout)


def main() -> None:
    document = json.load(sys.stdin)
    frame = pd.DataFrame(document["rows"], columns=document["columns"])
    client = get_deploy_client(TARGET)
    inputs = {
        "frame": frame,
        "numbered frame": pd.DataFrame(document["rows"]),
        "array": frame.to_numpy(),
        "rows": document["rows"],
    }
    answers = {name: client.predict(ENDPOINT, data) for name, data in inputs.items()}
    print(json.dumps(answers | {"command": command(frame)}))


if __name__ == "__main__":
    main()
