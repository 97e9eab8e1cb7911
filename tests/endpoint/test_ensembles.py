"""Ensembles, as `python -m build_engines build` makes them, against their parts called one by
one."""

import io
import shutil
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from numpy.typing import NDArray
from PIL import Image
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from build_engines.__main__ import main
from build_engines.families.bert import minilm
from serving.codecs.formats import to_rgb
from tests.backends.triton_process import infer
from tests.support.digits import held_out_pages
from tests.support.harness import FP32, ROOT, Server, b64, encoded, free_port

pytestmark = pytest.mark.stack

TEXTS = [
    "A man is eating food.",
    "x",
    "Ein längerer Satz mit mehr Wörtern, damit das Auffüllen zählt. " * 3,
    "日本語",
]
CPU = ("--for", "cpu", "--no-load", "--out")  # the server loads what is built
RESNET = ROOT / "model_repository/resnet"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ensembles")
    assert main(["build", "text_embedding", *CPU, str(folder)]) == 0
    digits = ["--weights", str(RESNET / "1/model.onnx"), "--labels", str(RESNET / "labels.txt")]
    assert main(["build", "image_classes", *digits, *CPU, str(folder)]) == 0
    pooling = ["--name", "by_tokens", "--set", "pooling=mean", "--set", "normalize=yes"]
    assert main(["build", "text_embedding", *pooling, *CPU, str(folder)]) == 0
    left = tmp_path_factory.mktemp("left")
    shutil.copytree(minilm(), left, dirs_exist_ok=True)
    prompts = '{"prompts": {"query": "Eine Frage: "}, "default_prompt_name": "query"}'
    (left / "config_sentence_transformers.json").write_text(prompts)
    (left / "tokenizer_config.json").write_text('{"truncation_side": "left"}')
    assert (
        main(
            ["build", "text_embedding", "--name", "left", "--weights", str(left), *CPU, str(folder)]
        )
        == 0
    )
    return folder


@pytest.fixture(scope="module")
def server(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    variables = {
        "SAGEMAKER_TRITON_ALLOW_GRPC": "true",
        "SAGEMAKER_TRITON_GRPC_PORT": str(free_port()),
        **FP32,
    }
    running = Server(tmp_path_factory.mktemp("serve"), built, **variables).wait_ready()
    running.grpc = variables["SAGEMAKER_TRITON_GRPC_PORT"]  # type: ignore[attr-defined]
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def triton(server: Server) -> InferenceServerClient:
    return grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc}")  # type: ignore[attr-defined]


def strings(*texts: str) -> NDArray[np.object_]:
    return np.array([[text.encode()] for text in texts], dtype=np.object_)


def test_get_the_same_from_a_text_ensemble_and_its_parts(triton: InferenceServerClient) -> None:
    texts = {"INPUT0": strings(*TEXTS)}
    whole = infer(triton, "text_embedding", texts)["finaloutput"]
    assert whole.shape == (len(TEXTS), 384)
    tokens = infer(triton, "text_embedding_tokenizer", texts)
    encoded = infer(triton, "bert", tokens)["sentence_embedding"]
    pooled = {"sentence_embedding": encoded, "attention_mask": tokens["attention_mask"]}
    np.testing.assert_array_equal(
        whole, infer(triton, "text_embedding_pooling", pooled)["finaloutput"]
    )


def test_get_the_same_pooling_from_the_ensemble_and_the_network(
    triton: InferenceServerClient,
) -> None:
    by_tokens, whole = (
        infer(triton, name, {"INPUT0": strings(*TEXTS)}) for name in ("by_tokens", "text_embedding")
    )
    np.testing.assert_allclose(by_tokens["finaloutput"], whole["finaloutput"], atol=1e-6)


@pytest.mark.parametrize("names", [("text_embedding", "bert"), ("left", "left_bert")])
def test_get_the_same_embedding_from_bert_s_client(server: Server, names: tuple[str, str]) -> None:
    # past max_batch_size, and longer than the model takes
    texts = [*TEXTS * 10, "word " * 600 + TEXTS[0]]
    bodies = [{"model_name": name, "instances": texts} for name in names]
    replies = [server.post(json=body).json()["predictions"] for body in bodies]
    ours, theirs = (
        np.array([each["embedding"] for each in predictions]) for predictions in replies
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_answer_each_caller_with_texts_of_different_lengths(triton: InferenceServerClient) -> None:
    texts = [" ".join(["word"] * count) for count in range(1, 17)]
    expected = infer(triton, "text_embedding", {"INPUT0": strings(*texts)})["finaloutput"]
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda text: infer(triton, "text_embedding", {"INPUT0": strings(text)}), texts)
        )
    for row, answer in zip(expected, answers, strict=True):
        np.testing.assert_allclose(answer["finaloutput"][0], row, atol=1e-5)


@pytest.mark.parametrize(
    "texts",
    [strings(*["x"] * 17), np.array([[b"\xff\xfe"]], dtype=np.object_)],
    ids=["too many", "not UTF-8"],
)
def test_refuse_texts_that_the_ensemble_cannot_take(
    triton: InferenceServerClient, texts: NDArray[np.object_]
) -> None:
    with pytest.raises(InferenceServerException):
        infer(triton, "text_embedding", {"INPUT0": texts})


@pytest.fixture(scope="module")
def pages() -> list[Image.Image]:
    return [page.image for page in islice(held_out_pages(7), 3)]


def test_get_the_same_from_an_image_ensemble_and_its_parts(
    triton: InferenceServerClient, pages: list[Image.Image]
) -> None:
    files = [*(encoded(page, "JPEG") for page in pages), encoded(Image.new("RGBA", (9, 9)), "PNG")]
    images = np.stack(
        [np.frombuffer(file.ljust(max(map(len, files)), b"\0"), np.uint8) for file in files]
    )
    whole = infer(triton, "image_classes", {"INPUT": images})["OUTPUT"]
    pixels = infer(triton, "image_classes_decoder", {"DALI_INPUT_0": images})["DALI_OUTPUT_0"]
    assert (pixels.shape, pixels.dtype.name) == ((4, 3, 64, 64), "uint8")
    opened = [to_rgb(Image.open(io.BytesIO(file))) for file in files]  # transparent parts are white
    resized = [page.resize((64, 64), Image.Resampling.BILINEAR) for page in opened]
    np.testing.assert_array_equal(
        pixels, [np.asarray(image).transpose(2, 0, 1) for image in resized]
    )
    scores = infer(triton, "image_classes_classifier", {"input": pixels})["logits"]
    np.testing.assert_array_equal(whole, scores)


def test_send_a_raw_image_and_get_the_likeliest_classes(
    server: Server, pages: list[Image.Image]
) -> None:
    reply = server.post(
        "/invocations?model_name=image_classes&top_k=3", data=encoded(pages[0], "JPEG")
    ).json()
    classes = reply["predictions"][0]["classes"]
    assert [each["score"] for each in classes] == sorted(
        (each["score"] for each in classes), reverse=True
    )
    assert len(classes) == 3
    together = {
        "model_name": "image_classes",
        "instances": [b64(encoded(page, "JPEG")) for page in pages],
    }
    answers = server.post(json=together).json()["predictions"]
    assert answers[0]["classes"][:3] == [pytest.approx(each) for each in classes]


@pytest.mark.parametrize("cut", [3000, 9])
def test_blame_the_caller_for_an_undecodable_image(
    server: Server, pages: list[Image.Image], cut: int
) -> None:
    reply = server.post(
        "/invocations?model_name=image_classes", data=encoded(pages[0], "JPEG")[:cut]
    )
    assert reply.status_code == 400


def test_load_the_archive_of_an_ensemble(server: Server, built: Path, tmp_path: Path) -> None:
    arguments = [
        "archive",
        "text_embedding",
        "--repository",
        str(built),
        "--out",
        str(tmp_path),
        "--copies",
        "1",
    ]
    assert main(arguments) == 0
    root, target = tmp_path / "models", "text_embedding-0.tar.gz"
    with tarfile.open(tmp_path / target) as archive:
        archive.extractall(root / "0" / "model", filter="data")
    (tmp_path / "empty").mkdir()
    variables = {"SAGEMAKER_MULTI_MODEL": "true", "SERVE_MODEL_REPOSITORY": str(root), **FP32}
    multi = Server(tmp_path, tmp_path / "empty", **variables).wait_ready()
    try:
        expected = server.post(json={"model_name": "text_embedding", "instances": TEXTS}).json()[
            "predictions"
        ]
        body = {"model_name": "opaque", "url": str(root / "0" / "model")}
        loaded = multi.post("/models", json=body, headers={"X-Amzn-SageMaker-Target-Model": target})
        assert loaded.status_code == 200, loaded.text
        reply = multi.post("/models/opaque/invoke", json={"instances": TEXTS})
        ours = [each["embedding"] for each in reply.json()["predictions"]]
        np.testing.assert_allclose(ours, [each["embedding"] for each in expected], atol=1e-6)
    finally:
        assert multi.stop() == 0
