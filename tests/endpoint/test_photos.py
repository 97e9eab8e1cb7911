"""The bundled models of photos, through the whole container: the example, and photos that are not in the repository."""

from collections.abc import Iterator

import pytest

from tests.support.harness import FP32, ROOT, Server, link_model
from tests.support.photos import png

pytestmark = pytest.mark.stack

MODELS = ("efficientnet", "yolov4_tiny")
EXAMPLE = (ROOT / "model_repository/efficientnet/example.jpg").read_bytes()


@pytest.fixture(scope="module", params=[FP32, {"SERVE_CPU_ENGINE": "openvino"}], ids=["onnxruntime", "openvino"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    for name in MODELS:
        link_model(ROOT / "model_repository" / name, repository)
    running = Server(tmp_path_factory.mktemp("serve"), repository, **request.param).wait_ready()
    yield running
    assert running.stop() == 0


def classes(server: Server, image: bytes, kind: str = "image/png") -> dict[str, float]:
    """{label: score} of the best five."""
    reply = server.post("/invocations?model_name=efficientnet", data=image, headers={"Content-Type": kind})
    assert reply.status_code == 200, reply.text
    return {found["label"]: found["score"] for found in reply.json()["predictions"][0]["classes"]}


def objects(server: Server, image: bytes, kind: str = "image/png") -> dict[str, float]:
    """{label: the best score}."""
    reply = server.post("/invocations?model_name=yolov4_tiny", data=image, headers={"Content-Type": kind})
    assert reply.status_code == 200, reply.text
    return {found["label"]: found["score"] for found in reversed(reply.json()["predictions"][0]["detections"])}


def test_the_example_is_an_espresso_in_a_cup(server: Server) -> None:
    assert classes(server, EXAMPLE, "image/jpeg")["espresso"] > 0.9
    assert objects(server, EXAMPLE, "image/jpeg")["cup"] > 0.8


def test_a_cat_is_a_cat(server: Server) -> None:
    found = classes(server, png("chelsea"))
    assert list(found)[:3] == ["tiger cat", "Egyptian cat", "tabby, tabby cat"]
    assert list(found.values())[:3] == pytest.approx([0.385, 0.363, 0.167], abs=0.02)
    assert objects(server, png("chelsea"))["cat"] == pytest.approx(0.63, abs=0.03)


def test_an_astronaut_is_a_person(server: Server) -> None:
    assert objects(server, png("astronaut")) == {"person": pytest.approx(0.87, abs=0.03)}
