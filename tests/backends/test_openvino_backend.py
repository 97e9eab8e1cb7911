"""Compares this project's openvino backend, in a real tritonserver, with ONNX Runtime in this
process."""

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tritonclient.grpc import InferenceServerClient as Client
from tritonclient.utils import InferenceServerException

from tests.backends.onnx_models import LONGEST, TABLE, reference, text_feed
from tests.backends.openvino_models import BUNDLED, NUMBERS, REFUSED, SERVED, write_repository
from tests.backends.triton_process import (
    Arrays,
    Server,
    answered_together,
    config,
    executions,
    infer,
    refusal,
    serving,
    together,
)
from tests.support.harness import ROOT, wait_until

pytestmark = pytest.mark.stack

RANDOM = np.random.default_rng(0)
# tolerance relative to the largest value, because OpenVINO computes in BF16 if the processor
# supports it
BF16 = 0.02


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("openvino")
    write_repository(folder / "models")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, backends: Path) -> Iterator[Server]:
    cache = str(folder / "cache")
    # each load starts a process that imports OpenVINO and compiles
    options = ["--model-load-thread-count=2"]
    with serving(folder / "models", backends, folder / "log", *options, TMPDIR=cache) as running:
        yield running


def assert_close(outputs: Arrays, expected: Arrays, tolerance: float = BF16) -> None:
    assert outputs.keys() == expected.keys()
    for name, array in expected.items():
        assert (outputs[name].dtype, outputs[name].shape) == (array.dtype, array.shape)
        assert np.abs(outputs[name] - array).max(initial=0) <= tolerance * np.abs(array).max(
            initial=0
        )


def assert_rows_close(rows: Any, expected: Any) -> None:
    """Check for each image that its best 20 boxes are among those found, in any order."""
    assert (rows.dtype, rows.shape) == (expected.dtype, expected.shape)
    scales = BF16 * np.abs(expected).max(axis=(0, 1))
    for image, boxes in enumerate(expected):
        best = boxes[np.argsort(-boxes[:, 4])[:20]]
        assert all((np.abs(rows[image] - box) <= scales).all(axis=1).any() for box in best)


def assert_served(client: Client, model: str, feed: Arrays) -> None:
    assert_close(infer(client, model, feed), reference(SERVED[model][0], feed))


def pair(*shape: int) -> Arrays:
    return {name: RANDOM.random(shape, dtype=np.float32) for name in ("x", "y")}


@pytest.mark.parametrize(
    ("model", "shape"),
    [*((model, (3, 3)) for model in ("arithmetic", "two_instances", "streams")), ("scalar", (1,))],
)
def test_answer_as_onnx_runtime_does(client: Client, model: str, shape: tuple[int, ...]) -> None:
    feed = pair(*shape)
    assert_close(
        infer(client, model, feed), {"sum": feed["x"] + feed["y"], "product": feed["x"] * feed["y"]}
    )


def bundled_feed(name: str) -> Arrays:
    if name == "bert":
        ids = RANDOM.integers(1000, 20000, (2, 12))
        return {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
    if name == "yolov5":  # the boxes of an image of noise are arbitrary, and differ in BF16
        page = np.asarray(
            Image.open(ROOT / "model_repository/yolov5/example.jpg")
            .convert("RGB")
            .resize((640, 640))
        )
        return {"images": np.stack([page, page[:, ::-1]]).transpose(0, 3, 1, 2).copy()}
    return {"input": RANDOM.integers(0, 256, (2, 3, 64, 64), dtype=np.uint8)}


@pytest.mark.parametrize("name", BUNDLED)
def test_compute_the_bundled_models_as_onnx_runtime_does(client: Client, name: str) -> None:
    feed = bundled_feed(name)
    expected = reference(str(ROOT / f"model_repository/{name}/1/model.onnx"), feed)
    answer = infer(client, name, feed)
    if name == "yolov5":
        assert_rows_close(answer["output0"], expected["output0"])
    else:
        assert_close(answer, expected)


@pytest.mark.parametrize("model", ["arithmetic", "streams"])
def test_return_each_merged_request_its_own_rows(client: Client, model: str) -> None:
    widths = (2, 3, 2, 7, 3, 1) if model == "arithmetic" else (3,) * 6
    feeds = [pair(rows, width) for rows, width in zip((1, 2, 1, 3, 1, 1), widths, strict=True)]
    for feed, answer in zip(feeds, together(client, model, feeds), strict=True):
        assert isinstance(answer, dict)
        assert_close(answer, reference(SERVED[model][0], feed))


@pytest.mark.parametrize(("model", "tolerance"), [("encoder", 1e-5), ("encoder_bf16", BF16)])
def test_merge_texts_of_any_length(client: Client, model: str, tolerance: float) -> None:
    feeds = [text_feed(*size) for size in ((1, 5), (1, 7), (2, 9), (1, 1), (1, LONGEST))]
    answers = answered_together(client, model, [sent for sent, _ in feeds], most=4)
    for (_, feed), answer in zip(feeds, answers, strict=True):
        assert_close(answer, reference(SERVED[model][0], feed), tolerance)


def numbers(name: str) -> Any:
    """Return two rows with the smallest and largest numbers that OpenVINO handles. Its integers
    have 32 bits."""
    if name == "BOOL":
        return np.array([[True, False, True], [False, False, True]])
    if name.startswith("FP"):
        dtype = np.dtype({"FP16": "f2", "FP32": "f4", "FP64": "f8"}[name])
        return np.array([[60000, -60000, 0.25], [np.inf, -0.0, 2.0**-14]], dtype=dtype)
    bounds, widest = np.iinfo(name.lower()), np.iinfo(np.int32)
    limits = [min(bounds.max, widest.max), max(bounds.min, widest.min), 0]
    return np.array([limits, [1, 2, 3]], dtype=name.lower())


def test_pass_every_datatype_but_strings_unchanged(client: Client) -> None:
    answer = infer(client, "numbers", {f"in_{name}": numbers(name) for name in NUMBERS})
    for name in NUMBERS:
        assert answer[f"out_{name}"].dtype == numbers(name).dtype
        np.testing.assert_array_equal(answer[f"out_{name}"], numbers(name))


@pytest.mark.parametrize(
    ("name", "number"),
    [("INT64", 2**31), ("INT64", -(2**31) - 1), ("UINT64", 2**63), ("UINT32", 2**31)],
)
def test_refuse_integers_that_openvino_would_change(client: Client, name: str, number: int) -> None:
    feed = {f"in_{each}": numbers(each) for each in NUMBERS}
    feed[f"in_{name}"] = np.full((2, 3), number, dtype=name.lower())
    with pytest.raises(InferenceServerException, match=f"'in_{name}'") as caught:
        infer(client, "numbers", feed)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_answer_wrong_shapes_to_their_own_caller_only(client: Client) -> None:
    wrong = {"x": pair(1, 2)["x"], "y": pair(1, 3)["y"]}
    first, answer, last = together(client, "arithmetic", [pair(1, 4), wrong, pair(1, 4)])
    assert isinstance(first, dict)
    assert isinstance(last, dict)
    assert isinstance(answer, InferenceServerException)
    assert answer.status() == "StatusCode.INVALID_ARGUMENT"


def test_accept_a_computed_size_for_a_free_one_in_the_config(client: Client) -> None:
    assert_served(client, "half", {"x": RANDOM.random((3, 8), dtype=np.float32)})


def test_serve_a_model_with_a_warm_up(client: Client) -> None:
    assert executions(client, "lookup") == (8, 1)
    answer = infer(client, "lookup", {"index": np.array([[3], [0]], dtype=np.int64)})
    assert (answer["value"].tolist(), answer["double"].tolist()) == (
        [[TABLE[3]], [TABLE[0]]],
        [[6], [0]],
    )


@pytest.mark.parametrize("index", [len(TABLE), -len(TABLE) - 1])
def test_refuse_an_index_outside_of_its_table(client: Client, index: int) -> None:
    good = {"index": np.array([[-1]], dtype=np.int64)}
    wrong = {"index": np.array([[0], [index]], dtype=np.int64)}
    first, answer = together(client, "lookup", [good, wrong])
    assert isinstance(first, dict) and first["value"].tolist() == [[TABLE[-1]]]
    assert isinstance(answer, InferenceServerException)
    assert answer.status() == "StatusCode.INVALID_ARGUMENT" and f"'index' has {index};" in str(
        answer
    )


def test_serve_openvino_s_own_format_without_a_config(client: Client) -> None:
    generated = config(client, "own_format")
    assert generated["backend"] == "openvino"
    assert generated["max_batch_size"] == 4  # Triton's default
    assert "dynamic_batching" in generated
    assert [each["name"] for each in generated["input"]] == ["x", "y"]
    assert all(
        (each["data_type"], each["dims"]) == ("TYPE_FP32", ["3"]) for each in generated["input"]
    )
    feed = pair(2, 3)
    outputs = infer(client, "own_format", feed)
    named = {name.removesuffix("_too"): array for name, array in outputs.items()}
    assert_close(named, reference(SERVED["minimal"][0], feed))


def test_use_the_config_s_name_of_an_output_with_several(client: Client) -> None:
    feed = pair(2, 3)
    expected = reference(SERVED["minimal"][0], feed)
    assert_close(
        infer(client, "own_names", feed),
        {"sum_too": expected["sum"], "product": expected["product"]},
    )


def test_convert_to_the_datatypes_of_the_config(client: Client) -> None:
    feed: Arrays = {
        "x": np.array([[1, 2, 250]], np.uint8),
        "y": np.array([[0.5, 1, 2]], np.float32),
    }
    answer = infer(client, "converted", feed)
    assert {name: (array.dtype.name, array.tolist()) for name, array in answer.items()} == {
        "sum": ("float16", [[1.5, 3, 252]]),
        "product": ("float64", [[0.5, 2, 500]]),
    }


@pytest.mark.parametrize(
    "line",
    [
        "arithmetic_0_0: OpenVINO .* on CPU, .*, 1 threads in 1 streams",
        "two_instances_0_1: OpenVINO .* on CPU, f32, 2 threads in 1 streams",
        "streams_0_0: OpenVINO .*, 2 threads in 2 streams",
        "converted_0_0: OpenVINO .* on CPU, .*compiled",
        "converted_0_0: parameter 'COMPILATION_NUM_THREADS' has no effect",
        "converted_0_0: parameter 'CPU_THREADS_NUM' has no effect",
    ],
)
def test_log_the_effect_of_the_parameters(server: Server, line: str) -> None:
    assert re.search(line, server.text())
    assert "parameter 'client'" not in server.text()


@pytest.mark.parametrize("model", REFUSED)
def test_refuse_a_model_that_cannot_be_served_as_configured(client: Client, model: str) -> None:
    assert re.search(REFUSED[model][-1], refusal(client, model))


def test_compile_only_a_truncated_model_at_a_second_start(
    server: Server, folder: Path, backends: Path, tmp_path: Path
) -> None:
    cache = shutil.copytree(folder / "cache", tmp_path / "cache")
    (truncated,) = (cache / "serve-engines/openvino/lookup").rglob("*.blob")
    size = truncated.stat().st_size
    truncated.chmod(0o600)
    os.truncate(truncated, size // 2)
    inodes = {path: path.stat().st_ino for path in cache.rglob("*.blob") if path != truncated}
    options = [f"--load-model={name}" for name in ("bert", "two_instances", "lookup")]
    options += ["--model-control-mode=explicit"]
    log = tmp_path / "log"
    with serving(folder / "models", backends, log, *options, TMPDIR=str(cache)) as second:
        wait_until(lambda: second.text().count("taken from the cache in") == 3, second.text)
        compiled = "lookup_0_0: OpenVINO .* compiled in"
        wait_until(lambda: re.search(compiled, second.text()), second.text)
        assert second.text().count("compiled in") == 1
    assert truncated.stat().st_size == size
    assert {path: path.stat().st_ino for path in inodes} == inodes


def test_keep_the_cache_private_and_the_model_folder_unchanged(
    server: Server, folder: Path
) -> None:
    assert stat.S_IMODE((folder / "cache/serve-engines/openvino/bert/1").stat().st_mode) == 0o700
    assert list((folder / "models").rglob("*.blob")) == []
    assert len(list((folder / "cache/serve-engines/openvino/two_instances").rglob("*.blob"))) == 1


def test_compile_a_model_without_a_writable_cache(
    folder: Path, backends: Path, tmp_path: Path
) -> None:
    (tmp_path / "cache/serve-engines").mkdir(parents=True)
    (tmp_path / "cache/serve-engines").chmod(0o777)
    options = ["--model-control-mode=explicit", "--load-model=minimal"]
    cache = str(tmp_path / "cache")
    with serving(folder / "models", backends, tmp_path / "log", *options, TMPDIR=cache) as server:
        assert_served(server.client(), "minimal", pair(2, 3))
        assert re.search("minimal_0_0: compiled without a cache", server.text())
