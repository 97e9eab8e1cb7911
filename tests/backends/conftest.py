"""Starts a real tritonserver for these tests, once, with a repository of tiny ONNX models."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tritonclient.grpc import InferenceServerClient

from backends.install import install
from tests.backends.onnx_models import SIX, write_repository
from tests.backends.triton_process import Server, serving, shared_memory


@pytest.fixture(scope="session")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("triton") / "backends"
    install(folder)
    return folder


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_repository(folder)
    return folder


@pytest.fixture(scope="session")
def server(
    repository: Path, backends: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Serve the models of onnx_models.py. Those named bad_* fail to load."""
    log = tmp_path_factory.mktemp("log") / "triton.log"
    with serving(repository, backends, log, **SIX) as running:
        yield running
        assert shared_memory(running.process)
    assert not shared_memory(running.process)


@pytest.fixture
def client(server: Server) -> InferenceServerClient:
    return server.client()
