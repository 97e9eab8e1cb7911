"""Imports point one way, and what a client needs is complete."""

import ast
import sys
from pathlib import Path

import pytest

from clients.base import ModelClient
from serving.registry import families
from tests.harness import ROOT

ORDER = ["wsgi", "predictor", "serving.multimodel_routes", "serving.answers", "serving.replies", "serving.services",
         "serving.multimodel", "serving.loaded", "serving.archives", "serving.stream_reply", "serving.health",
         "serving.batch_transform", "serving.streaming", "serving.pipeline", "serving.registry",
         "serving.served_model", "clients",
         "serving.wire", "serving.tensors", "serving.sessions", "serving.invocation", "serving.triton",
         "serving.codecs", "serving.deadline", "serving.errors", "serving.settings"]  # fmt: skip
STANDARD = set(sys.stdlib_module_names)


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", modules("clients"), ids=lambda path: path.stem)
def test_clients_know_nothing_of_the_web_or_of_grpc(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(path)}
    assert not tops & {"flask", "werkzeug", "gunicorn", "grpc", "tritonclient", "predictor", "wsgi", "torch"}


@pytest.mark.parametrize("path", [*modules("serving"), ROOT / "predictor.py"], ids=lambda path: path.stem)
def test_only_the_gateway_talks_to_triton(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(path)}
    assert "triton" in path.parts or not tops & {"grpc", "tritonclient", "urllib3"}


@pytest.mark.parametrize("name", ["serve", "serving/process.py", "serving/system.py", "serving/settings.py",
                                  "serving/processes.py", "serving/machine.py", "serving/tritonserver.py",
                                  "serving/cloudwatch.py", "serving/repositories.py", "serving/ports.py",
                                  "serving/values.py", "serving/commandline.py", "serving/explain.py",
                                  "serving/setting.py", "serving/contradictions.py", "serving/edge.py",
                                  "serving/plans.py", "serving/fingerprint.py", "serving/trtexec.py"])  # fmt: skip
def test_pid_1_needs_nothing_but_the_standard_library(name: str) -> None:
    tops = {found.split(".")[0] for found in imports(ROOT / name)}
    assert tops - STANDARD <= {"serving"}


def test_no_module_imports_one_above_it() -> None:
    wrong = []
    for position, name in enumerate(ORDER):
        path = ROOT / name.replace(".", "/")
        files = modules(str(path)) if path.is_dir() else [path.with_suffix(".py")]
        above = set(ORDER[:position])
        wrong += [(name, found) for file in files for found in imports(file) if found in above]
    assert wrong == []


@pytest.mark.parametrize("family", families())
def test_every_client_is_complete(family: str) -> None:
    """A class, a test, a model folder with an example, and a place in the README."""
    client = __import__(f"clients.{family}", fromlist=["Client"]).Client
    assert issubclass(client, ModelClient)
    assert (ROOT / f"tests/clients/test_client_{family}.py").is_file()
    assert (ROOT / f"model_repository/{family}/config.pbtxt").is_file()
    assert list((ROOT / f"model_repository/{family}").glob("example.*"))
    assert f"model_name={family}" in (ROOT / "README.md").read_text()
