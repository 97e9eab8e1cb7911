"""KServe's output parameter `classification`: our answer is Triton's own, and nothing that kills Triton reaches it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.endpoint.test_hostile_bodies import ECHO
from tests.support.harness import ONE_INSTANCE, Server

pytestmark = pytest.mark.stack

LABELS = b"zero\none with  spaces \n\nthree\r\nf\xc3\xbcnf"


def make_echo(repository: Path, name: str, datatype: str, batch: int = 8) -> None:
    folder, dims = repository / name, "[-1]" if batch else "[-1, -1]"
    (folder / "1").mkdir(parents=True)
    (folder / "1/model.py").write_text(ECHO)
    (folder / "words.txt").write_bytes(LABELS)
    tensor = f'name: "x" data_type: TYPE_{datatype} dims: {dims}'
    labels = 'label_filename: "words.txt"' if name == "labelled" else ""
    (folder / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: {batch}\n{ONE_INSTANCE}'
        f"input {{ {tensor} }}\noutput {{ {tensor} {labels} }}\n"
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    for name in ("labelled", "fp32"):
        make_echo(repository, name, "FP32")
    make_echo(repository, "without_batch", "FP32", batch=0)
    for datatype in ("FP64", "INT8", "UINT64", "FP16", "BOOL"):
        make_echo(repository, datatype.lower(), datatype)
    make_echo(repository, "bytes", "STRING")
    running = Server(tmp_path_factory.mktemp("serve"), repository, SERVE_WORKERS="1").wait_ready()
    yield running
    assert running.stop() == 0


def body(datatype: str, shape: list[int], data: list[Any], count: Any, **more: Any) -> dict[str, Any]:
    inputs = [{"name": "x", "shape": shape, "datatype": datatype, "data": data}]
    return {"inputs": inputs, "outputs": [{"name": "x", "parameters": {"classification": count, **more}}]}


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
def test_the_classes_are_those_of_triton(
    server: Server, model: str, datatype: str, shape: list[int], data: list[Any], count: int
) -> None:
    document = body(datatype, shape, data, count)
    with server.triton() as triton:
        expected = triton.post(f"/v2/models/{model}/infer", json=document).json()
    assert expected["outputs"][0]["datatype"] == "BYTES"
    assert ask(server, model, document).json() == expected


def test_classes_travel_as_binary_data_and_in_streams_too(server: Server) -> None:
    document = body("FP32", [1, 2], [1.0, 2.0], 1, binary_data=True)
    reply = ask(server, "labelled", document)
    length = int(reply.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(reply.content[:length])["outputs"]
    assert (output["datatype"], output["shape"], output["parameters"]) == ("BYTES", [1, 1], {"binary_data_size": 32})
    assert reply.content[length:] == (28).to_bytes(4, "little") + b"2.000000:1:one with  spaces "
    line = server.post(params={"model_name": "labelled"}, json=document, headers={"Accept": "application/jsonlines"})
    assert line.json()["outputs"][0]["data"] == ["2.000000:1:one with  spaces "]


def test_what_ends_tritonserver_does_not_reach_it(server: Server) -> None:
    pid = server.pid("tritonserver")
    for model, datatype, data in (
        ("bytes", "BYTES", ["a", "b"]),
        ("fp16", "FP16", [1, 2]),
        ("bool", "BOOL", [True, False]),
    ):
        reply = ask(server, model, body(datatype, [1, 2], data, 1))
        assert (reply.status_code, reply.json()["code"]) == (400, "invalid_request")
    for shape, expected in (([1, 0], [1, 0]), ([2, 0], [2, 0])):
        (output,) = ask(server, "fp32", body("FP32", shape, [], 2)).json()["outputs"]
        assert (output["datatype"], output["shape"], output["data"]) == ("BYTES", expected, [])
    (output,) = ask(server, "without_batch", body("FP32", [0, 3], [], 2)).json()["outputs"]
    assert (output["shape"], output["data"]) == ([0], [])
    assert server.pid("tritonserver") == pid


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True, None, [1], 2**70])
def test_a_count_that_is_none_is_the_callers_mistake(server: Server, count: Any) -> None:
    reply = ask(server, "fp32", body("FP32", [1, 2], [1.0, 2.0], count))
    assert (reply.status_code, reply.json()["code"]) == (400, "invalid_request")
    assert "'x'" in reply.json()["error"]
