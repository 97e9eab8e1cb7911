"""Tests KServe's output parameter `classification`: the answers are Triton's own, and requests that
would crash Triton do not reach it."""

import json
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.harness import Server, expect_error, make_python_model, module_server

pytestmark = pytest.mark.stack

ECHO = '''
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Gives its input back."""

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
        outputs = [pb_utils.Tensor("x", tensor.as_numpy()) for tensor in inputs]
        return [pb_utils.InferenceResponse([tensor]) for tensor in outputs]
'''
LABELS = b"zero\none with  spaces \n\nthree\r\nf\xc3\xbcnf"


def make_echo(repository: Path, name: str, datatype: str, batch: int = 8) -> None:
    tensor = f'name: "x" data_type: TYPE_{datatype} dims: {"[-1]" if batch else "[-1, -1]"}'
    labels = 'label_filename: "words.txt"' if name == "labelled" else ""
    config = f"max_batch_size: {batch}\ninput {{ {tensor} }}\noutput {{ {tensor} {labels} }}\n"
    make_python_model(repository / name, config, ECHO)
    (repository / name / "words.txt").write_bytes(LABELS)


def make_echoes(repository: Path) -> None:
    make_echo(repository, "labelled", "FP32")
    make_echo(repository, "without_batch", "FP32", batch=0)
    make_echo(repository, "bytes", "STRING")
    for datatype in ("FP32", "FP64", "INT8", "UINT64", "FP16", "BOOL"):
        make_echo(repository, datatype.lower(), datatype)


server = module_server(make_echoes, SERVE_WORKERS="1")


def body(
    datatype: str, shape: list[int], data: list[Any], count: Any, **more: Any
) -> dict[str, Any]:
    inputs = [{"name": "x", "shape": shape, "datatype": datatype, "data": data}]
    return {
        "inputs": inputs,
        "outputs": [{"name": "x", "parameters": {"classification": count, **more}}],
    }


def ask(server: Server, model: str, document: Any) -> requests.Response:
    return server.post(f"/v2/models/{model}/infer", json=document)


@pytest.mark.parametrize(
    ("model", "datatype", "shape", "data", "count"),
    [
        ("fp32", "FP32", [1, 6], [0.5, 3.0, 1e20, -2.0, 1e-9, 3.25], 2),
        ("fp32", "FP32", [1, 3], [0.5, 3.0, 1e20], 99),
        ("fp32", "FP32", [2, 3], [1, 2, 3, 3, 2, 1], 2),
        ("fp32", "FP32", [1, 4], [1, 1, 1, 1], 3),
        ("labelled", "FP32", [2, 5], [1, 2, 3, 4, 5, 5, 4, 3, 2, 1], 5),
        ("labelled", "FP32", [1, 7], [1, 2, 3, 4, 5, 6, 7], 3),
        ("without_batch", "FP32", [2, 3], [1, 2.5, 3, -3, 2, 1.5], 4),
        ("fp64", "FP64", [1, 3], [1e300, -0.1, 1 / 3], 3),
        ("int8", "INT8", [1, 3], [-128, 127, 0], 3),
        ("uint64", "UINT64", [1, 3], [2**64 - 1, 0, 2**63], 3),
    ],
)
def test_return_the_classes_of_triton(
    server: Server, model: str, datatype: str, shape: Any, data: Any, count: int
) -> None:
    document = body(datatype, shape, data, count)
    with server.triton() as triton:
        expected = triton.post(f"/v2/models/{model}/infer", json=document).json()
    assert expected["outputs"][0]["datatype"] == "BYTES"
    assert ask(server, model, document).json() == expected


def test_return_classes_as_binary_data_and_in_streams_too(server: Server) -> None:
    document = body("FP32", [1, 2], [1.0, 2.0], 1, binary_data=True)
    reply = ask(server, "labelled", document)
    length = int(reply.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(reply.content[:length])["outputs"]
    assert (output["datatype"], output["shape"], output["parameters"]) == (
        "BYTES",
        [1, 1],
        {"binary_data_size": 32},
    )
    assert reply.content[length:] == (28).to_bytes(4, "little") + b"2.000000:1:one with  spaces "
    line = server.post(
        params={"model_name": "labelled"},
        json=document,
        headers={"Accept": "application/jsonlines"},
    )
    assert line.json()["outputs"][0]["data"] == ["2.000000:1:one with  spaces "]


def test_keep_requests_from_tritonserver_that_would_crash_it(server: Server) -> None:
    pid = server.pid("tritonserver")
    for model, data in (("bytes", ["a", "b"]), ("fp16", [1, 2]), ("bool", [True, False])):
        reply = ask(server, model, body(model.upper(), [1, 2], data, 1))
        expect_error(reply, 400, "invalid_request")
    for shape, expected in (([1, 0], [1, 0]), ([2, 0], [2, 0])):
        (output,) = ask(server, "fp32", body("FP32", shape, [], 2)).json()["outputs"]
        assert (output["datatype"], output["shape"], output["data"]) == ("BYTES", expected, [])
    (output,) = ask(server, "without_batch", body("FP32", [0, 3], [], 2)).json()["outputs"]
    assert (output["shape"], output["data"]) == ([0], [])
    assert server.pid("tritonserver") == pid


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True, None, [1], 2**70])
def test_answer_400_for_a_count_that_is_not_a_positive_integer(server: Server, count: Any) -> None:
    reply = ask(server, "fp32", body("FP32", [1, 2], [1.0, 2.0], count))
    expect_error(reply, 400, "invalid_request", "outputs[0].parameters.classification")
