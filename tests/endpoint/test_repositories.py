"""Models of two repositories are served by one container."""

from collections.abc import Iterator

import pytest

from tests.support.harness import Server, make_scale, make_sleeper

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two repositories, one of them with a folder around it, and a folder that is no model."""
    folder = tmp_path_factory.mktemp("overlay")
    make_scale(folder / "first")
    (folder / "first/code").mkdir()
    make_sleeper(folder / "second/top")
    server = Server(folder, folder / "unused", SERVE_MODEL_REPOSITORY=f"{folder}/first:{folder}/second").wait_ready()
    yield server
    assert server.stop() == 0


def test_models_of_every_repository_are_served_by_name(overlay: Server) -> None:
    values = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [2]}]}
    assert overlay.post("/invocations?model_name=scale", json=values).json()["outputs"][0]["data"] == [6]
    reply = overlay.post("/invocations?model_name=sleeper", json={"instances": [0.5]})
    assert reply.json()["predictions"] == [0.5], "its client.py was found in the second repository"
    assert overlay.post(json=values).status_code == 400


def test_a_folder_that_is_no_model_does_no_harm(overlay: Server) -> None:
    assert overlay.post("/invocations?model_name=code", json={}).status_code == 404
    assert "first/code" in overlay.output() and "'top'" in overlay.output()
