"""Tests the ensemble in examples/ against the models that it calls, and packed as an archive."""

import io
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from PIL import Image
from tritonclient.grpc import InferenceServerClient

from serving.codecs.formats import to_rgb
from tests.backends.triton_process import infer
from tests.support.digits import held_out_pages
from tests.support.harness import FP32, ROOT, Server, b64, encoded, free_port

pytestmark = pytest.mark.stack

PHOTO = (ROOT / "model_repository/efficientnet/example.jpg").read_bytes()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with a copy of the example and its classifier, as docs/backends.md
    describes."""
    folder = tmp_path_factory.mktemp("models") / "repository"
    classifier = ROOT / "model_repository/efficientnet"
    shutil.copytree(ROOT / "examples/ensemble", folder)
    shutil.copytree(classifier, folder / "efficientnet")
    for name in ("labels.txt", "example.jpg"):
        shutil.copyfile(classifier / name, folder / "image_classes" / name)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    variables = {
        "SAGEMAKER_TRITON_ALLOW_GRPC": "true",
        "SAGEMAKER_TRITON_GRPC_PORT": str(free_port()),
        **FP32,
    }
    running = Server(tmp_path_factory.mktemp("serve"), repository, **variables).wait_ready()
    running.grpc = variables["SAGEMAKER_TRITON_GRPC_PORT"]  # type: ignore[attr-defined]
    yield running
    running.stop_later()


@pytest.fixture(scope="module")
def triton(server: Server) -> InferenceServerClient:
    return grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc}")  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def pages() -> list[Image.Image]:
    return [page.image for page in islice(held_out_pages(7), 3)]


def test_get_the_same_from_an_ensemble_and_its_parts(
    triton: InferenceServerClient, pages: list[Image.Image]
) -> None:
    files = [*(encoded(page, "JPEG") for page in pages), encoded(Image.new("RGBA", (9, 9)), "PNG")]
    longest = max(map(len, files))
    images = np.stack([np.frombuffer(file.ljust(longest, b"\0"), np.uint8) for file in files])
    whole = infer(triton, "image_classes", {"INPUT": images})["OUTPUT"]
    pixels = infer(triton, "image_classes_decoder", {"DALI_INPUT_0": images})["DALI_OUTPUT_0"]
    assert (pixels.shape, pixels.dtype.name) == ((4, 3, 224, 224), "uint8")
    # transparent parts become white
    opened = [to_rgb(Image.open(io.BytesIO(file))) for file in files]
    resized = [page.resize((224, 224), Image.Resampling.BILINEAR) for page in opened]
    np.testing.assert_array_equal(
        pixels, [np.asarray(image).transpose(2, 0, 1) for image in resized]
    )
    scores = infer(triton, "efficientnet", {"images": pixels})["logits"]
    np.testing.assert_array_equal(whole, scores)


def test_send_a_raw_image_and_get_the_likeliest_classes(server: Server) -> None:
    reply = server.post("/invocations?model_name=image_classes&top_k=3", data=PHOTO).json()
    classes = reply["predictions"][0]["classes"]
    scores = [each["score"] for each in classes]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    alone = server.post("/invocations?model_name=efficientnet", data=PHOTO).json()
    assert classes[0]["label"] == alone["predictions"][0]["classes"][0]["label"]
    together = {"model_name": "image_classes", "instances": [b64(PHOTO)] * 3}
    answers = server.post(json=together).json()["predictions"]
    assert answers[2]["classes"][:3] == [pytest.approx(each) for each in classes]


@pytest.mark.parametrize("cut", [3000, 9])
def test_blame_the_caller_for_an_undecodable_image(server: Server, cut: int) -> None:
    reply = server.post("/invocations?model_name=image_classes", data=PHOTO[:cut])
    assert reply.status_code == 400
