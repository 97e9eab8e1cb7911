"""Triton's dali backend as served here, through the real tritonserver, against DALI in process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from nvidia import dali
from nvidia.dali import fn, types
from PIL import Image
from tritonclient.grpc import InferenceServerClient as Client
from tritonclient.utils import InferenceServerException

from build_engines.__main__ import main
from serving.repository.model_config import read_config, written
from tests.backends import triton_process
from tests.backends.triton_process import Server, serving
from tests.build_engines.test_ensembles import tiny_network
from tests.support.harness import encoded

pytestmark = pytest.mark.stack

SOURCE = """
import nvidia.dali as dali
from nvidia.dali import types
from nvidia.dali.plugin.triton import autoserialize


@autoserialize
@dali.pipeline_def(batch_size=3, num_threads=4, device_id=0)
def pipe():
    image = dali.fn.external_source(device="cpu", name="DALI_INPUT_0")
    image = dali.fn.decoders.image(image, device="cpu", output_type=types.RGB)
    return dali.fn.resize(image, resize_x=32, resize_y=24), dali.fn.shapes(image)
"""
CONFIG = """
backend: "dali"
max_batch_size: 8
input { name: "DALI_INPUT_0" data_type: TYPE_UINT8 dims: [ -1 ] allow_ragged_batch: true }
output { name: "DALI_OUTPUT_0" data_type: TYPE_UINT8 dims: [ 24, 32, 3 ] }
output { name: "DALI_OUTPUT_1" data_type: TYPE_INT64 dims: [ 3 ] }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { max_queue_delay_microseconds: 200000 }
"""


@dali.pipeline_def(batch_size=8, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
def pipeline() -> Any:
    image = fn.external_source(device="cpu", name="DALI_INPUT_0")
    image = fn.decoders.image(image, device="cpu", output_type=types.RGB)
    return fn.resize(image, resize_x=32, resize_y=24), image.shape()


def write(folder: Path, config: str, file: str, content: str | bytes) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / "1" / file).write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.fixture(scope="module")
def server(backends: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("dali")
    models = folder / "models"
    write(models / "from_source", CONFIG, "dali.py", SOURCE)
    other = (
        'default_model_filename: "resize.dali"\nparameters { key: "num_threads" value: { '
        'string_value: "2" } }\n'
    )
    write(models / "serialized", CONFIG + other, "resize.dali", pipeline().serialize())
    gpu = SOURCE.replace(
        'decoders.image(image, device="cpu"', 'decoders.image(image, device="mixed"'
    )
    write(models / "bad_gpu", CONFIG, "dali.py", gpu)
    write(models / "bad_source", CONFIG, "dali.py", SOURCE.replace("@autoserialize\n", ""))
    write(models / "bad_empty", CONFIG, "other.txt", "")
    tiny_network(folder / "tiny.onnx", (299, 299, 3))
    for name, decoder in (("on_dali", "dali"), ("on_python", "python")):
        arguments = ["build", "image_classes", "--for", "cpu", "--out", str(models), "--name", name]
        arguments += ["--set", "mean=127.5", "--set", "std=127.5"]
        assert (
            main(
                [*arguments, "--weights", str(folder / "tiny.onnx"), "--set", f"decoder={decoder}"]
            )
            == 0
        )
        network = models / f"{name}_classifier"  # Triton itself merges no configs/cpu.pbtxt
        (network / "config.pbtxt").write_text(written(read_config(network, "cpu")))
    with serving(models, backends, folder / "log") as running:
        yield running


def jpeg(seed: int) -> NDArray[np.uint8]:
    """Return an encoded picture whose size and length depend on the seed."""
    small = Image.fromarray(np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8))
    return np.frombuffer(encoded(small.resize((80 + 10 * seed, 60 + 10 * seed)), "JPEG"), np.uint8)


def infer(
    client: Client, model: str, images: NDArray[Any], name: str = "DALI_INPUT_0"
) -> list[NDArray[Any]]:
    return [*triton_process.infer(client, model, {name: images}).values()]


def reference(images: list[NDArray[np.uint8]]) -> list[NDArray[Any]]:
    pipe = pipeline()
    pipe.feed_input("DALI_INPUT_0", images)
    return [output.as_array() for output in pipe.run()]


def assert_equal(outputs: list[NDArray[Any]], expected: list[NDArray[Any]]) -> None:
    for ours, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("model", ["from_source", "serialized"])
def test_process_an_encoded_image_as_dali_in_process_does(client: Client, model: str) -> None:
    assert_equal(infer(client, model, jpeg(1)[None]), reference([jpeg(1)]))


def test_pad_a_batch_with_zeros(client: Client) -> None:
    images = [jpeg(seed) for seed in (1, 2, 3)]
    longest = max(map(len, images))
    padded = np.stack([np.pad(image, (0, longest - len(image))) for image in images])
    assert_equal(infer(client, "from_source", padded), reference(images))


def test_merge_images_of_any_length_into_one_run(client: Client) -> None:
    images = [jpeg(seed) for seed in range(6)]
    feeds = [{"DALI_INPUT_0": image[None]} for image in images]
    answers = triton_process.answered_together(client, "serialized", feeds, most=5)
    for image, answer in zip(images, answers, strict=True):
        assert_equal([*answer.values()], reference([image]))


def test_fail_only_an_undecodable_image(client: Client) -> None:
    images = [jpeg(1), np.frombuffer(b"this is no image", np.uint8), jpeg(2), np.zeros(9, np.uint8)]

    answers = triton_process.together(
        client, "serialized", [{"DALI_INPUT_0": image[None]} for image in images]
    )
    for index in (1, 3):
        failed = answers[index]
        assert isinstance(failed, InferenceServerException)
        assert "fn.decoders.image" in failed.message()
        assert failed.status() == "StatusCode.INVALID_ARGUMENT"
    for index in (0, 2):
        served = answers[index]
        assert isinstance(served, dict)
        assert_equal([*served.values()], reference([images[index]]))
    assert_equal(infer(client, "serialized", jpeg(3)[None]), reference([jpeg(3)]))


def test_get_the_same_from_the_dali_ensemble_and_its_parts(client: Client) -> None:
    images = jpeg(3)[None]
    (pixels,) = infer(client, "on_dali_decoder", images)
    assert pixels.shape == (1, 299, 299, 3)
    assert_equal(
        infer(client, "on_dali", images, "INPUT"),
        infer(client, "on_dali_classifier", pixels, "image"),
    )


def test_get_the_same_from_the_python_and_the_dali_step(client: Client) -> None:
    """The two decode and resize differently, which usually differs by one grey level."""
    for seed in range(3):
        (ours,) = infer(client, "on_python_decoder", jpeg(seed)[None])
        (theirs,) = infer(client, "on_dali_decoder", jpeg(seed)[None])
        assert np.abs(ours - theirs).mean() < 1 / 127.5


NAMED = {"bad_gpu": "device_id=None", "bad_source": "@autoserialize", "bad_empty": "dali.py"}


@pytest.mark.parametrize("model", sorted(NAMED))
def test_refuse_a_model_that_cannot_be_served(client: Client, model: str) -> None:
    assert not client.is_model_ready(model)
    assert NAMED[model] in triton_process.refusal(client, model)
