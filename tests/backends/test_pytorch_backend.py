"""Compares this project's pytorch_libtorch backend, in a real tritonserver, with PyTorch in this
process."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tritonclient.grpc import InferenceServerClient as Client
from tritonclient.utils import InferenceServerException

from backends.pytorch import naming
from tests.backends.torch_models import FOUR, REFUSED, SERVED, write_repository
from tests.backends.triton_process import (
    Server,
    answered_together,
    infer,
    refusal,
    serving,
    together,
)

pytestmark = pytest.mark.stack

RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def server(backends: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("torch")
    write_repository(folder / "models")
    with serving(
        folder / "models", backends, folder / "log", "--model-load-thread-count=2"
    ) as running:
        yield running


def floats(*shape: int) -> NDArray[np.float32]:
    return RANDOM.random(shape, dtype=np.float32)


def test_answer_as_pytorch_in_process_does(client: Client) -> None:
    x = floats(3, 512)
    with torch.inference_mode():
        product, successor = torch.jit.script(SERVED["weighted"][0])(torch.from_numpy(x))
    answer = infer(client, "weighted", {"INPUT__0": x})
    np.testing.assert_allclose(answer["OUTPUT__0"], product.numpy(), rtol=1e-6, atol=1e-5)
    np.testing.assert_array_equal(answer["OUTPUT__1"], successor.numpy())


def test_merge_requests_into_one_run_and_return_each_its_rows(client: Client) -> None:
    feeds = [
        {"minuend": floats(n, 4), "subtrahend": floats(n, 4)} for n in (1, 2, 1, 1, 3, 1, 2, 1)
    ]
    for feed, answer in zip(
        feeds, answered_together(client, "by_argument", feeds, most=7), strict=True
    ):
        np.testing.assert_array_equal(answer["result"], feed["minuend"] - feed["subtrahend"])


def test_answer_an_error_only_to_the_caller_who_caused_it(client: Client) -> None:
    """Merge valid requests with an invalid one, so that each of them runs alone. The module reuses
    its memory for all of these runs, before any answer is sent."""
    feeds = [{"x": np.full((1, 4), number, np.float32)} for number in (1, -1, 2, 3)]
    for _ in range(5):
        one, wrong, *others = together(client, "reused", feeds)
        assert [answer["result"][0, 0] for answer in (one, *others)] == [1, 2, 3]  # type: ignore[index]
        assert isinstance(wrong, InferenceServerException)
        assert "a negative number" in wrong.message()


def test_pass_a_dictionary_keyed_by_the_input_names(client: Client) -> None:
    feed = {"minuend": floats(5), "subtrahend": floats(5)}
    answer = infer(client, "by_dictionary", feed)
    np.testing.assert_array_equal(answer["result"], feed["minuend"] - feed["subtrahend"])


def test_return_each_datatype_in_the_configured_order(client: Client) -> None:
    dtypes = {"BOOL": np.bool_, "FP16": np.float16, "INT64": np.int64, "UINT8": np.uint8}
    feed = {f"in_{name}": (100 * floats(2, 3)).astype(dtypes[name]) for name in FOUR}
    answer = infer(client, "datatypes", feed)
    for name in FOUR:
        assert answer[f"out_{name}"].dtype == dtypes[name]
        np.testing.assert_array_equal(answer[f"out_{name}"], feed[f"in_{name}"])


def test_serve_and_merge_lists_of_strings(client: Client) -> None:
    texts = (["a", "grüße"], ["b"], ["日本", "c", ""])
    feeds = [{"INPUT__0": np.array([[text] for text in each], dtype=np.object_)} for each in texts]
    for each, answer in zip(texts, together(client, "texts", feeds), strict=True):
        assert isinstance(answer, dict)
        assert [[text.decode()] for (text,) in answer["OUTPUT__0"]] == [
            [f"{text}!"] for text in each
        ]


def test_apply_the_parameters_of_executor_and_threads(server: Server) -> None:
    switches = [
        f"('ENABLE_{name}', False)" for name in ("JIT_EXECUTOR", "JIT_PROFILING", "TENSOR_FUSER")
    ]
    changed = ["optimized_execution=False", "intra_op_threads=3", re.escape(", ".join(switches))]
    usual = ["inference_mode=True", "optimized_execution=True", "intra_op_threads=1,"]
    for name, settings in (("weighted_twice_0_1", changed), ("weighted_0_0", usual)):
        line = ".*".join([f"{name}: cpu, ", *settings])
        assert re.search(line, server.text())


ARGUMENTS = ("minuend", "subtrahend")


@pytest.mark.parametrize("names", [["INPUT__0", "INPUT__2"], ["minuend"]])
def test_refuse_names_that_are_not_the_arguments_of_forward(names: list[str]) -> None:
    with pytest.raises(ValueError, match=f"{', '.join(names)}, .* takes 2: minuend, subtrahend"):
        naming.input_positions(names, ARGUMENTS)


@pytest.mark.parametrize("datatype", ["UINT32", "STRING"])
def test_refuse_tensors_that_pytorch_does_not_have(datatype: str) -> None:
    entry = {"name": "x", "data_type": f"TYPE_{datatype}", "dims": ["1"]}
    with pytest.raises(ValueError, match="'x'"):
        naming.check({"input": [entry], "output": [entry], "max_batch_size": 8})


@pytest.mark.parametrize("model", REFUSED)
def test_refuse_a_model_that_cannot_be_served_as_configured(client: Client, model: str) -> None:
    assert REFUSED[model][-1] in refusal(client, model)
