"""Compares this project's onnxruntime backend, in a real tritonserver, with ONNX Runtime, and the
configurations that serving.repository.completion completes with Triton's own."""

import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from google.protobuf import text_format
from numpy.typing import NDArray
from tritonclient.grpc import InferenceServerClient as Client
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException

from serving.host import tritonserver
from tests.backends.onnx_models import LONGEST, REFUSED, SERVED, SIX, TABLE, reference, text_feed
from tests.backends.triton_process import (
    Arrays,
    Server,
    answered_together,
    config,
    infer,
    refusal,
    together,
)
from tests.support.harness import PATIENCE, ROOT

pytestmark = pytest.mark.stack

RANDOM = np.random.default_rng(0)


def assert_equal(outputs: Arrays, expected: Arrays) -> None:
    assert outputs.keys() == expected.keys()
    for name, array in expected.items():
        assert outputs[name].dtype == array.dtype
        np.testing.assert_array_equal(outputs[name], array)


def floats(*shape: int) -> NDArray[np.float32]:
    return RANDOM.random(shape, dtype=np.float32)


def check_merged(client: Client, model: str, feeds: Sequence[Arrays], most: int) -> None:
    """Send the feeds at once, again and again until they take at most `most` executions. Check the
    answers."""
    answers = answered_together(client, model, feeds, most)
    for feed, answer in zip(feeds, answers, strict=True):
        assert_equal(answer, reference(SERVED[model][0], feed))


def check_texts(client: Client, feeds: Sequence[tuple[Arrays, Arrays]], most: int) -> None:
    """Send the texts at once, and check the answers. The numbers of a merged run are rounded
    differently."""
    answers = answered_together(client, "encoder", [sent for sent, _ in feeds], most)
    for (_, feed), answer in zip(feeds, answers, strict=True):
        expected = reference(SERVED["encoder"][0], feed)
        assert answer.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_allclose(answer[name], array, rtol=1e-5, atol=1e-5)


def test_merge_requests_into_one_run_and_return_each_its_rows(client: Client) -> None:
    feeds = [{"x": floats(n, 5), "y": floats(n, 5)} for n in (1, 3, 2, 2, 1, 1, 1, 1)]
    check_merged(client, "arithmetic", feeds, most=6)


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ([(1, 5), (1, 7), (2, 9), (1, 1), (1, 6)], 4),
        ([(1, 1), (1, LONGEST), (1, 2), (2, LONGEST - 7)], 3),
        ([(1, 1), (1, LONGEST)], 1),
    ],
)
def test_merge_texts_of_any_length(client: Client, sizes: list[tuple[int, int]], most: int) -> None:
    check_texts(client, [text_feed(*size) for size in sizes], most)


def test_read_the_masks_and_types_that_callers_of_tensors_send(client: Client) -> None:
    feeds = []
    for length in (4, 5, 9):
        mask = np.ones((2, length), np.int64)
        mask[0, length - 2 :] = 0
        types = np.arange(length) % 2 * mask
        feeds.append(text_feed(2, length, attention_mask=mask, token_type_ids=types))
    check_texts(client, feeds, most=2)


@pytest.mark.parametrize("masks", [4, 5, 9])
def test_give_each_text_as_many_masks_as_it_has(client: Client, masks: int) -> None:
    feeds = [text_feed(1, 4, masks), text_feed(1, 9, masks), text_feed(1, 5, 2)]
    check_texts(client, feeds, most=3)


def test_refuse_a_mask_of_another_length_than_the_text(client: Client) -> None:
    right, _ = text_feed(1, 5)
    wrong = right | {"attention_mask": np.ones((1, 1), np.int64)}
    answer, refused = together(client, "encoder", [right, wrong])
    assert isinstance(answer, dict)
    assert isinstance(refused, InferenceServerException)
    assert refused.status() == "StatusCode.INVALID_ARGUMENT"
    assert "'attention_mask' has the shape [1, 1]" in refused.message()


def test_return_their_own_rows_to_merged_parallel_requests(client: Client, server: Server) -> None:
    feeds = [
        {"index": np.array(rows, dtype=np.int64).reshape(-1, 1)}
        for rows in ([0], [1, 2], [3], [4, 0], [2])
    ]
    for feed, answer in zip(
        feeds, answered_together(client, "at_once", feeds, most=4), strict=True
    ):
        assert_equal(answer, reference(SERVED["at_once"][0], feed))
    line = "at_once_0_0: CPUExecutionProvider, .*intra_op_threads=2, .*separate_runs=True"
    assert re.search(line, server.text())


def test_blame_the_caller_for_bytes_that_are_not_utf8(client: Client) -> None:
    with pytest.raises(InferenceServerException, match="'x'") as caught:
        infer(client, "texts", {"x": np.array([[b"\xff\xfe"]], dtype=np.object_)})
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize("model", ["lookup", "at_once"])
def test_answer_an_error_only_to_the_caller_who_caused_it(client: Client, model: str) -> None:
    indices = [0, 99, 3, 2, -77, 4]
    answers = together(client, model, [{"index": np.array([[i]], dtype=np.int64)} for i in indices])
    for index, answer in zip(indices, answers, strict=True):
        if index in range(len(TABLE)):
            assert isinstance(answer, dict)
            assert answer["value"].tolist() == [[TABLE[index]]]
        else:
            assert isinstance(answer, InferenceServerException)
            assert f"idx={index} " in answer.message()
            assert answer.status() == "StatusCode.INVALID_ARGUMENT"


def test_pass_on_onnx_runtime_s_message_about_shapes(client: Client) -> None:
    with pytest.raises(InferenceServerException):
        infer(client, "arithmetic", {"x": floats(1, 2), "y": floats(1, 3)})


def test_return_the_requested_outputs_to_each_caller(client: Client) -> None:
    feed = {"x": floats(1, 2), "y": floats(1, 2)}
    wishes = [["product"], ["sum"], [], ["sum", "product"]]
    with ThreadPoolExecutor(len(wishes)) as pool:
        answers = list(pool.map(lambda wish: infer(client, "arithmetic", feed, wish), wishes))
    expected = reference(SERVED["arithmetic"][0], feed)
    for wish, answer in zip(wishes, answers, strict=True):
        assert_equal(answer, {name: expected[name] for name in wish or expected})


def test_omit_an_optional_input_beside_callers_who_send_it(client: Client) -> None:
    one = np.array([[1.0]], dtype=np.float32)
    feeds = [{"x": one}, {"x": one, "bias": 2 * one}, {"x": 2 * one}, {"x": one, "bias": 5 * one}]
    answers = together(client, "optional_input", feeds)
    assert [answer["y"].item() for answer in answers if isinstance(answer, dict)] == [
        101,
        3,
        102,
        6,
    ]


def test_keep_the_shape_of_a_model_without_batches(client: Client) -> None:
    feeds = [{"x": floats(2, 3), "y": floats(2, 3)} for _ in range(4)]
    for feed, answer in zip(feeds, together(client, "unbatched", feeds), strict=True):
        assert isinstance(answer, dict)
        assert_equal(answer, reference(SERVED["unbatched"][0], feed))


def test_complete_a_model_without_config_from_its_file(client: Client) -> None:
    generated = config(client, "without_config")
    assert generated["max_batch_size"] == 6  # the default that SIX sets
    assert "dynamic_batching" in generated
    assert generated["platform"] == "onnxruntime_onnx"
    assert [each["name"] for each in generated["input"]] == ["x", "y"]
    assert all(
        (each["data_type"], each["dims"]) == ("TYPE_FP32", ["3", "-1"])
        for each in generated["input"]
    )
    assert [o["name"] for o in generated["output"]] == ["sum", "product"]
    feed = {"x": floats(2, 3, 6), "y": floats(2, 3, 6)}
    assert_equal(
        infer(client, "without_config", feed), reference(SERVED["without_config"][0], feed)
    )


def test_keep_a_minimal_config_and_do_not_batch_a_fixed_shape(client: Client) -> None:
    minimal, fixed = config(client, "minimal_config"), config(client, "fixed_shape")
    assert (minimal["max_batch_size"], "dynamic_batching" in minimal) == (16, True)
    assert (fixed.get("max_batch_size", 0), "dynamic_batching" in fixed) == (0, False)
    assert (minimal["input"][0]["dims"], fixed["input"][0]["dims"]) == (["3"], ["2", "3"])
    assert minimal["instance_group"][0]["count"] == 1


@pytest.mark.parametrize("model", ["vector", "scalar"])
def test_show_tensors_without_dimensions_as_shape_one(client: Client, model: str) -> None:
    shape, own = ((3, 1), (3,)) if model == "vector" else ((1,), ())
    feed = {"x": floats(*shape), "y": floats(*shape)}
    expected = reference(
        SERVED[model][0], {name: array.reshape(own) for name, array in feed.items()}
    )
    assert_equal(
        infer(client, model, feed),
        {name: np.reshape(array, shape) for name, array in expected.items()},
    )


@pytest.mark.parametrize("model", REFUSED)
def test_refuse_a_model_that_cannot_be_served_as_configured(client: Client, model: str) -> None:
    assert REFUSED[model][-1] in refusal(client, model)


def test_run_each_instance_as_a_process_with_its_threads(server: Server) -> None:
    commands = [
        " ".join(child.cmdline()) for child in psutil.Process(server.process.pid).children()
    ]
    assert sum("two_instances" in command for command in commands) == 2
    settings = "CPUExecutionProvider, .*intra_op_threads=3, .*parallel=True, level=-1"
    for instance in ("two_instances_0_0", "two_instances_0_1"):
        assert re.search(f"{instance}: {settings}", server.text())


def test_keep_errors_of_requests_out_of_the_log(client: Client, server: Server) -> None:
    before = server.text()
    with pytest.raises(InferenceServerException):
        infer(client, "lookup", {"index": np.array([[99]], dtype=np.int64)})
    assert server.text() == before


# completes a copy of each named model's configuration, in one process
COMPLETE = """
import pathlib, shutil, sys
from serving.repository.completion import main
repository, copies, backends = map(pathlib.Path, sys.argv[1:4])
for name in sys.argv[4:]:
    if (repository / name / "config.pbtxt").exists():
        shutil.copy(repository / name / "config.pbtxt", copies / name)
    main(repository / name, copies / name, backends)
"""


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=SIX, capture_output=True, text=True, timeout=PATIENCE
    )


@pytest.fixture(scope="module")
def completed(
    repository: Path, backends: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("completed")
    done = run("-c", COMPLETE, repository, folder, backends, *SERVED)
    assert done.returncode == 0, done.stderr
    return {name: text_format.Parse((folder / name).read_text(), ModelConfig()) for name in SERVED}


def completed_fields(config: Any) -> dict[str, Any]:
    return {
        "max_batch_size": config.max_batch_size,
        "input": [str(tensor) for tensor in config.input],
        "output": [str(tensor) for tensor in config.output],
        "dynamic batching": config.HasField("dynamic_batching"),
        "backend": config.backend,
    }


@pytest.mark.parametrize("name", SERVED)
def test_complete_as_triton(name: str, client: Client, completed: dict[str, Any]) -> None:
    ours = completed[name]
    ours.backend = ours.backend or "onnxruntime"  # Triton derives the backend from the platform
    assert completed_fields(ours) == completed_fields(client.get_model_config(name).config)
    assert ours.name == ""


@pytest.mark.parametrize(
    ("name", "named"), [("bad_batch", "max_batch_size 0"), ("bad_bfloat16", "'x'")]
)
def test_explain_in_the_last_line_why_completion_failed(
    name: str, named: str, repository: Path, backends: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "config.pbtxt"
    copy.write_bytes((repository / name / "config.pbtxt").read_bytes())
    done = run("-m", "serving.repository.completion", repository / name, copy, backends)
    assert done.returncode == 1
    assert named in done.stderr.strip().splitlines()[-1]


def test_state_the_version_that_tritonserver_reports(client: Client) -> None:
    assert client.get_server_metadata().version == tritonserver.version()
