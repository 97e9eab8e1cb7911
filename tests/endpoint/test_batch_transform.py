"""Tests batch transform: JSON lines in and out, errors for single lines, and
/execution-parameters."""

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import requests
from PIL import Image

from tests.support.harness import (
    ROOT,
    Server,
    b64,
    encoded,
    expect_error,
    link_model,
    make_both_scales,
    make_python_model,
    module_server,
    png_that_claims,
)

pytestmark = pytest.mark.stack

LINES = "application/jsonlines"
BATCH = 8

SUMMER = '''
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Sum each row and return how many rows came together.

    A row below 0 fails the whole batch, one over 100 sleeps, one over 1000 ends the process."""

    def execute(self, requests):
        replies = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "rows").as_numpy()
            if rows.max() > 1000:
                os._exit(1)
            time.sleep(max(0.0, float(rows.max()) - 100))
            if rows.min() < 0:
                error = pb_utils.TritonError("a row is below 0")
                replies.append(pb_utils.InferenceResponse(error=error))
                continue
            sums = np.stack([rows.sum(axis=1), np.full(len(rows), len(rows))], axis=1)
            tensor = pb_utils.Tensor("sums", sums.astype(np.float32))
            replies.append(pb_utils.InferenceResponse([tensor]))
        return replies
'''

SUMMER_CLIENT = """
import numpy as np

from clients.base import ModelClient, Parameter
from serving.codecs import JSON
from serving.errors import DecodingError


class Client(ModelClient):
    codec = JSON
    example = b"[1, 2]"
    parameters = (Parameter("times", 1, "what the sum is multiplied with", minimum=0),)

    def prepare(self, instances, parameters):
        for number, instance in enumerate(instances):
            if not isinstance(instance, list):
                raise DecodingError("expected a list of two numbers", instance=number)
        return {"rows": np.array(instances, dtype=np.float32)}

    def postprocess(self, outputs, inputs, instances, parameters):
        times = parameters["times"]
        return [{"sum": float(a) * times, "together": int(b)} for a, b in outputs["sums"]]
"""


def make_models(repository: Path) -> None:
    """Make `scale`, `resnet`, and `summer`, [batch, 2] -> [batch, 2], which takes at most BATCH
    rows at once."""
    config = (
        f'max_batch_size: {BATCH}\ninput {{ name: "rows" data_type: TYPE_FP32 dims: [2] }}\n'
        'output { name: "sums" data_type: TYPE_FP32 dims: [2] }\n'
    )
    make_python_model(repository / "summer", config, SUMMER, SUMMER_CLIENT)
    make_both_scales(repository)
    link_model(ROOT / "model_repository/resnet", repository)


own = {
    "SERVE_REQUEST_TIMEOUT": "4",
    "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "3",
    "SERVE_WORKERS": "2",
}
server = module_server(make_models, **own)


def send(
    server: Server, records: list[Any] | bytes, model: str = "summer", **request: Any
) -> requests.Response:
    body = (
        records
        if isinstance(records, bytes)
        else b"".join(json.dumps(r).encode() + b"\n" for r in records)
    )
    headers = {"Content-Type": LINES, **request.pop("headers", {})}
    params = {"model_name": model, **request.pop("params", {})}
    return server.post(data=body, headers=headers, params=params, **request)


def lines(reply: requests.Response) -> list[Any]:
    """Write one value per line. Every line ends with a line feed."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["Content-Type"] == LINES
    assert reply.content.endswith(b"\n")
    return [json.loads(line) for line in reply.content.split(b"\n")[:-1]]


def picture(colour: str) -> dict[str, str]:
    return b64(encoded(Image.new("RGB", (40, 30), colour)))


def test_answer_each_line_in_batches_of_the_largest_size(server: Server) -> None:
    rows = lines(send(server, [[n, 1] for n in range(100)]))
    assert [line["sum"] for line in rows] == [n + 1 for n in range(100)]
    assert [line["together"] for line in rows] == [BATCH] * 96 + [4] * 4


@pytest.mark.parametrize(
    "kind", [LINES, "application/x-jsonlines", "application/x-ndjson", f"{LINES}; charset=utf-8"]
)
@pytest.mark.parametrize("accept", ["*/*", LINES, "application/json"])
def test_accept_every_name_of_json_lines_with_any_accept(
    server: Server, kind: str, accept: str
) -> None:
    (line,) = lines(send(server, [[1, 2]], headers={"Content-Type": kind, "Accept": accept}))
    assert line == {"sum": 3, "together": 1}


@pytest.mark.parametrize(
    ("body", "sums"), [(b"[1, 2]", [3]), (b"\n[1, 2]\r\n\r\n  \n[3, 4]\r\n\n", [3, 7])]
)
def test_accept_a_last_line_without_end_and_skip_empty_lines(
    server: Server, body: bytes, sums: list[int]
) -> None:
    assert [line["sum"] for line in lines(send(server, body))] == sums


def test_answer_the_other_lines_beside_wrong_ones(server: Server) -> None:
    wrong = {
        b"{nonsense": "decoding_error",  # not JSON
        b'"a string"': "decoding_error",  # the client refuses it
        b"[1, 2, 3]": "invalid_request",  # cannot be batched with the others, and is refused alone
        b"[-1, 0]": "inference_failed",  # Triton refuses it, and all lines in the same call
        b'{"instances": []}': "invalid_request",
        b'{"instances": [[1, 1]], "parameters": {"unknown": 1}}': "invalid_request",
        b'{"model_name": "scale", "instances": [[1, 1]]}': "invalid_request",
        b'{"model_version": "7", "instances": [[1, 1]]}': "invalid_request",
        b"\xff\xfe": "decoding_error",
    }
    records = [(f"[{n}, 1]".encode(), n + 1) for n in range(60)] + list(wrong.items()) * 3
    random.Random(1).shuffle(records)
    rows = lines(
        send(server, b"\n".join(line for line, _ in records), params={"model_version": "1"})
    )
    assert len(rows) == len(records)
    for line, (_, expected) in zip(rows, records, strict=True):
        if isinstance(expected, int):
            assert line["sum"] == expected
        else:
            assert set(line) == {"error", "code"}
            assert line["code"] == expected
    assert {line["code"] for line in lines(send(server, [[-1, 0]] * 20))} == {"inference_failed"}


def test_answer_a_record_that_is_a_request_as_one(server: Server) -> None:
    records = [
        {"instances": [[1, 2]], "parameters": {"times": 10}},
        {"instances": [[1, 2], [3, 4]]},
        {"modelname": "summer", "payload": [5, 6]},
        [7, 8],
        {"instances": [[1, 2]], "parameters": {"times": 1}},
        {"instances": [[1, 2]], "parameters": {"times": True}},
    ]
    rows = lines(send(server, records, headers={"Accept": "image/png"}))
    assert rows[0]["predictions"][0]["sum"] == 30
    assert [each["sum"] for each in rows[1]["predictions"]] == [3, 7]
    assert (rows[1]["model_name"], rows[1]["model_version"]) == ("summer", "1")
    assert (rows[2]["modelname"], rows[2]["result"]["sum"]) == ("summer", 11)
    assert rows[3]["sum"] == 15
    assert (rows[4]["predictions"][0]["sum"], rows[5]["code"]) == (3, "invalid_request")


def test_apply_parameters_of_the_request_to_every_line(server: Server) -> None:
    attributes = {"X-Amzn-SageMaker-Custom-Attributes": "model_name=summer;times=3"}
    reply = send(server, [[1, 2], [3, 4]], headers=attributes)
    assert [line["sum"] for line in lines(reply)] == [9, 21]
    assert (
        reply.headers["X-Amzn-SageMaker-Custom-Attributes"]
        == attributes["X-Amzn-SageMaker-Custom-Attributes"]
    )
    assert (reply.headers["X-Model-Name"], reply.headers["X-Model-Version"]) == ("summer", "1")


def test_answer_400_for_a_wrong_parameter_of_the_request(server: Server) -> None:
    reply = send(server, [[1, 2]], params={"times": "many"})
    expect_error(reply, 400, "invalid_request")


def test_decode_images_line_by_line(server: Server) -> None:
    huge = b64(png_that_claims(100_000, 100_000))
    named = [
        {**picture("black"), "model_name": name, "parameters": {"top_k": 1}}
        for name in ("resnet", "summer")
    ]
    records = [picture("white"), {"b64": "!"}, b64(b"text"), huge, picture("black"), 5, *named]
    rows = lines(send(server, records, "resnet", params={"top_k": "2"}))
    assert [len(rows[n]["classes"]) for n in (0, 4, 6)] == [2, 2, 1]
    assert [rows[n]["code"] for n in (1, 2, 3, 5, 7)] == ["decoding_error"] * 4 + [
        "invalid_request"
    ]


def tensor(values: list[float], **more: Any) -> dict[str, Any]:
    return {
        "inputs": [{"name": "x", "shape": [1, len(values)], "datatype": "FP32", "data": values}],
        **more,
    }


def test_read_a_kserve_request_per_line_for_tensor_models(server: Server) -> None:
    short = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1.0]}]}
    binary = tensor([1.0], parameters={"binary_data_output": True})
    rows = lines(
        send(
            server,
            [tensor([1.0]), short, {"inputs": 5}, binary, [1.0], tensor([2.0, 3.0])],
            "scale",
        )
    )
    assert [rows[n]["outputs"][0]["data"] for n in (0, 5)] == [[3.0], [6.0, 9.0]]
    assert [rows[n]["code"] for n in (1, 2, 4)] == ["invalid_request"] * 3
    assert rows[3]["code"] == "not_acceptable"


def test_answer_every_line_with_the_version_of_the_request(server: Server) -> None:
    records = [tensor([1.0]), tensor([1.0], model_version="1")]
    reply = send(server, records, "scale", params={"model_version": 1})
    assert [line["outputs"][0]["data"] for line in lines(reply)] == [[2.0], [2.0]]
    assert send(server, [tensor([1.0])], "scale").headers["X-Model-Version"] == "2"


def test_take_model_and_version_of_the_first_line_if_nothing_else_names_them(
    server: Server,
) -> None:
    line = {"instances": [[1, 2]], "model_name": "summer"}
    records = [line, {"instances": [[3, 4]]}, line | {"model_name": "scale"}]
    first, second, other = lines(send(server, records, ""))
    sums = [row["predictions"][0]["sum"] for row in (first, second)]
    assert (first["model_name"], sums) == ("summer", [3.0, 7.0])
    assert other["code"] == "invalid_request" and "'scale'" in other["error"]
    records = [tensor([1.0], modelname="scale", model_version=1), tensor([1.0], model_version="2")]
    for model in ("", "scale"):
        first, other = lines(send(server, records, model))
        assert first["outputs"][0]["data"] == [2.0]
        assert other["code"] == "invalid_request" and "'2'" in other["error"]
    for unnamed in ([[1, 2]], [{"model_name": 5}], b"{"):
        expect_error(send(server, unnamed, ""), 400, "invalid_request", "no model is named")


@pytest.mark.parametrize(
    ("records", "model", "status", "code"),
    [
        ([[1, 2]], "nobody", 404, "model_not_found"),
        (b"", "summer", 400, "invalid_request"),
        (b"\n \n", "summer", 400, "invalid_request"),
        ([[1, 2]] * 8 + [[104, 0]], "summer", 504, "triton_timeout"),
    ],
)
def test_answer_an_error_to_a_wrong_request(
    server: Server, records: Any, model: str, status: int, code: str
) -> None:
    reply = send(server, records, model)
    expect_error(reply, status, code)


def test_answer_504_to_lines_that_take_too_long_together(server: Server) -> None:
    """Each group of lines is answered in time, but all of them together are not. This project's 504
    comes before nginx's."""
    reply = send(server, [[100.2, 0], *[[0, 0]] * (4 * BATCH - 1)] * 45)
    expect_error(reply, 504, "triton_timeout", "SAGEMAKER_MAX_PAYLOAD_IN_MB")


def test_answer_503_to_all_lines_if_triton_dies_between(server: Server) -> None:
    with server.unattended():
        os.kill(server.pid("tritonserver"), signal.SIGKILL)
        reply = send(server, [[1, 2]] * 20)
    expect_error(reply, 503, "triton_unavailable")
    assert reply.headers["Retry-After"]
    server.wait_ready()
    assert len(lines(send(server, [[1, 2]] * 20))) == 20


def test_take_execution_parameters_from_the_variables(server: Server) -> None:
    reply = server.get("/execution-parameters")
    assert reply.json() == {
        "MaxConcurrentTransforms": 3,
        "BatchStrategy": "MULTI_RECORD",
        "MaxPayloadInMB": 6,
    }
    assert server.post("/execution-parameters").status_code == 405
