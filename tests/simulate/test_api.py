"""Tests boto3 against the simulator with the real container."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulate.simulation import PLATFORMS_PINGS, Simulation
from tests.support.harness import ROOT, link_model, wait_until
from tests.support.streaming_models import make_reader

pytestmark = pytest.mark.stack

BERT = ROOT / "model_repository/bert"


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    repository = tmp_path_factory.mktemp("model")
    link_model(BERT, repository)
    make_reader(repository)
    with Simulation(ROOT / "serve", model=repository, limits=PLATFORMS_PINGS) as running:
        assert running.endpoint.failure == ""
        yield running
        assert not running.journal.complaints.keys() - {"status"}
    assert running.journal.complaints["exit"] == running.journal.complaints["stop"] == 0


def predictions(body: bytes) -> Any:
    return json.loads(body)["predictions"]


def test_return_the_parts_of_a_stream_as_the_model_sends_them(simulation: Simulation) -> None:
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["one two three"]}
    # the delay is the number of seconds between two words
    pause = {"name": "delay", "datatype": "FP32", "shape": [1, 1], "data": [2]}
    reply = simulation.client.invoke_endpoint_with_response_stream(
        EndpointName="desk",
        Body=json.dumps({"inputs": [text, pause]}),
        ContentType="application/json",
        Accept="text/event-stream",
        CustomAttributes="model_name=reader",
    )
    parts = [event["PayloadPart"]["Bytes"] for event in reply["Body"]]
    assert reply["ContentType"].startswith("text/event-stream")
    assert len(parts) >= 3
    for word in (b"one", b"two", b"three"):
        assert word in b"".join(parts)


def test_call_a_model_directly_as_a_stream_and_through_s3(simulation: Simulation) -> None:
    body, attributes = (BERT / "example.txt").read_bytes(), "model_name=bert"
    named = {"EndpointName": "desk", "ContentType": "text/plain", "CustomAttributes": attributes}
    reply = simulation.client.invoke_endpoint(Body=body, InferenceId="mine", **named)
    whole = predictions(reply["Body"].read())
    assert len(whole) == 1
    assert reply["ResponseMetadata"]["RequestId"]
    fields = [
        reply[name] for name in ("ContentType", "InvokedProductionVariant", "CustomAttributes")
    ]
    assert fields == ["application/json", "AllTraffic", attributes]

    reply = simulation.client.invoke_endpoint_with_response_stream(Body=body, **named)
    streamed = b"".join(event["PayloadPart"]["Bytes"] for event in reply["Body"])
    assert reply["ContentType"] == "application/json"
    assert str(predictions(streamed))[:200] == str(whole)[:200]

    source = simulation.s3 / "bucket/in/text"
    source.parent.mkdir(parents=True)
    source.write_bytes(body)
    accepted = simulation.client.invoke_endpoint_async(
        InputLocation="s3://bucket/in/text", InferenceId="my-id", **named
    )
    assert accepted["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert accepted["InferenceId"] == "my-id"
    output = simulation.s3 / accepted["OutputLocation"].removeprefix("s3://")
    wait_until(output.exists, "an output in S3")
    assert str(predictions(output.read_bytes()))[:200] == str(whole)[:200]


def test_write_the_reason_if_an_asynchronous_call_fails(simulation: Simulation) -> None:
    accepted = simulation.client.invoke_endpoint_async(
        EndpointName="desk", InputLocation="s3://bucket/absent"
    )
    failure = simulation.s3 / accepted["FailureLocation"].removeprefix("s3://")
    wait_until(failure.exists, "a failure in S3")
    assert "s3://bucket/absent" in failure.read_text()
    accepted = simulation.client.invoke_endpoint_async(
        EndpointName="desk",
        Body=b"text",
        ContentType="text/plain",
        CustomAttributes="model_name=no-such",
    )
    failure = simulation.s3 / accepted["FailureLocation"].removeprefix("s3://")
    wait_until(failure.exists, "a failure in S3")
    assert "no-such" in json.loads(failure.read_text())["error"]
