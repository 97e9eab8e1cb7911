"""Imports point one way, and what a client needs is complete."""

import ast
import sys
from pathlib import Path

import pytest

from clients.base import ModelClient
from serving.inference.registry import families
from tests.harness import ROOT

ORDER = [
    "wsgi",
    "predictor",
    "serving.front.multimodel_routes",
    "serving.front.answers",
    "serving.front.replies",
    "serving.front.services",
    "serving.multimodel.loader",
    "serving.multimodel.loaded",
    "serving.repository.archives",
    "serving.front.stream_reply",
    "serving.front.health",
    "serving.inference.batch_transform",
    "serving.inference.streaming",
    "serving.inference.pipeline",
    "serving.inference.registry",
    "serving.inference.served_model",
    "clients",
    "serving.bodies.wire",
    "serving.bodies.tensors",
    "serving.inference.sessions",
    "serving.bodies.invocation",
    "serving.triton",
    "serving.codecs",
    "serving.inference.deadline",
    "serving.errors",
    "serving.settings.table",
]
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


@pytest.mark.parametrize(
    "name",
    [
        "serve",
        "serving/supervisor/supervisor.py",
        "serving/supervisor/linux.py",
        "serving/settings/table.py",
        "serving/supervisor/processes.py",
        "serving/host/machine.py",
        "serving/host/tritonserver.py",
        "serving/supervisor/cloudwatch.py",
        "serving/repository/layout.py",
        "serving/repository/facts.py",
        "serving/supervisor/ports.py",
        "serving/settings/forms.py",
        "serving/supervisor/triton_options.py",
        "serving/settings/explain.py",
        "serving/settings/row.py",
        "serving/settings/contradictions.py",
        "serving/supervisor/nginx.py",
        "serving/host/programs.py",
    ],
)
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
