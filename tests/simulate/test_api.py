"""boto3 and the sagemaker SDK against the simulator, around the real container."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.conftest import BUNDLED
from tests.simulate.simulation import PLATFORMS_PINGS, Simulation, client_of
from tests.support.harness import ROOT, link_model, wait_until
from tests.support.readme import commands
from tests.support.streaming_models import make_reader, make_summer

SDK3 = Path(sys.prefix) / "sdk3"
EXAMPLES = {
    "resnet": ("example.png", "image/png"),
    "yolov5": ("example.jpg", "image/jpeg"),
    "bert": ("example.txt", "text/plain"),
}


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    repository = tmp_path_factory.mktemp("model")
    for name in BUNDLED:
        link_model(ROOT / "model_repository" / name, repository)
    make_reader(repository)
    make_summer(repository)
    # An open sequence holds Triton up at its end.
    with Simulation(
        ROOT / "serve", name="desk", model=repository, limits=PLATFORMS_PINGS, SERVE_STOP_TIMEOUT="2"
    ) as running:
        assert running.endpoint.failure == ""
        yield running
    assert running.journal.complaints["exit"] == 0
    assert running.journal.complaints["stop"] == 0


def invoke(simulation: Simulation, model: str, body: bytes, kind: str, **arguments: Any) -> Any:
    return simulation.client.invoke_endpoint(
        EndpointName="desk", Body=body, ContentType=kind, CustomAttributes=f"model_name={model}", **arguments
    )


def example(model: str) -> tuple[bytes, str]:
    name, kind = EXAMPLES[model]
    return (ROOT / "model_repository" / model / name).read_bytes(), kind


def predictions(body: bytes) -> Any:
    return json.loads(body)["predictions"]


@pytest.mark.parametrize("model", BUNDLED)
def test_boto3_invokes_each_bundled_model(simulation: Simulation, model: str) -> None:
    reply = invoke(simulation, model, *example(model), InferenceId="mine")
    assert len(predictions(reply["Body"].read())) == 1
    assert reply["ContentType"] == "application/json"
    assert reply["InvokedProductionVariant"] == "AllTraffic"
    assert reply["CustomAttributes"] == f"model_name={model}"


@pytest.mark.parametrize("model", BUNDLED)
def test_a_stream_brings_the_same_answer_in_parts(simulation: Simulation, model: str) -> None:
    body, kind = example(model)
    whole = predictions(invoke(simulation, model, body, kind)["Body"].read())
    reply = simulation.client.invoke_endpoint_with_response_stream(
        EndpointName="desk", Body=body, ContentType=kind, CustomAttributes=f"model_name={model}"
    )
    streamed = b"".join(event["PayloadPart"]["Bytes"] for event in reply["Body"])
    assert reply["ContentType"] == "application/json"
    assert str(predictions(streamed))[:200] == str(whole)[:200]


def test_the_parts_of_a_stream_come_as_the_model_says_them(simulation: Simulation) -> None:
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["one two three"]}
    pause = {"name": "delay", "datatype": "FP32", "shape": [1, 1], "data": [2]}  # seconds between two words
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


@pytest.mark.parametrize("model", BUNDLED)
def test_an_asynchronous_call_takes_its_input_from_s3_and_leaves_its_output_there(
    simulation: Simulation, model: str
) -> None:
    body, kind = example(model)
    source = simulation.s3 / "bucket/in" / model
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_bytes(body)
    accepted = simulation.client.invoke_endpoint_async(
        EndpointName="desk",
        InputLocation=f"s3://bucket/in/{model}",
        ContentType=kind,
        InferenceId=f"id-{model}",
        CustomAttributes=f"model_name={model}",
    )
    assert accepted["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert accepted["InferenceId"] == f"id-{model}"
    output = simulation.s3 / accepted["OutputLocation"].removeprefix("s3://")
    wait_until(output.exists, "an output in S3")
    whole = predictions(invoke(simulation, model, body, kind)["Body"].read())
    assert str(predictions(output.read_bytes()))[:200] == str(whole)[:200]


def test_an_asynchronous_call_that_fails_leaves_the_reason(simulation: Simulation) -> None:
    accepted = simulation.client.invoke_endpoint_async(EndpointName="desk", InputLocation="s3://bucket/absent")
    failure = simulation.s3 / accepted["FailureLocation"].removeprefix("s3://")
    wait_until(failure.exists, "a failure in S3")
    assert "There is no object s3://bucket/absent" in failure.read_text()
    accepted = simulation.client.invoke_endpoint_async(
        EndpointName="desk", Body=b"text", ContentType="text/plain", CustomAttributes="model_name=no-such"
    )
    failure = simulation.s3 / accepted["FailureLocation"].removeprefix("s3://")
    wait_until(failure.exists, "a failure in S3")
    assert "no-such" in json.loads(failure.read_text())["error"]


def test_the_reason_of_an_error_reaches_the_caller(simulation: Simulation) -> None:
    with pytest.raises(simulation.client.exceptions.ModelError) as caught:
        invoke(simulation, "no-such", b"text", "text/plain")
    assert caught.value.response["OriginalStatusCode"] == 404
    assert json.loads(caught.value.response["OriginalMessage"])["code"] == "model_not_found"
    with pytest.raises(ClientError, match="Endpoint other of account 123456789012 not found"):
        simulation.client.invoke_endpoint(EndpointName="other", Body=b"")
    with pytest.raises(ClientError, match="not a multi-model endpoint"):
        invoke(simulation, "bert", b"text", "text/plain", TargetModel="a.tar.gz")
    with pytest.raises(ClientError, match="Variant B was not found"):
        invoke(simulation, "bert", b"text", "text/plain", TargetVariant="B")


def test_a_session_is_opened_continued_and_closed(simulation: Simulation) -> None:
    def add(number: float, session: str, **parameters: Any) -> Any:
        tensor = {"name": "number", "datatype": "FP32", "shape": [1, 1], "data": [number]}
        body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        return invoke(simulation, "summer", body, "application/json", SessionId=session)

    first = add(1, "NEW_SESSION")
    session = first["NewSessionId"].partition(";")[0]
    last = add(10, session, sequence_end=True)
    assert last["ClosedSessionId"] == session
    assert 11.0 in [output["data"][0] for output in json.loads(last["Body"].read())["outputs"]]
    with pytest.raises(ClientError, match="does not exist or has expired"):
        add(1, session)
    assert simulation.journal.complaints["session"] == 0


def predictor_of(session: Any, kind: str) -> Any:
    """The SDK looks for its configuration, and says a word on its next version, when it is imported."""
    predictor: Any = importlib.import_module("sagemaker.predictor")
    serializers: Any = importlib.import_module("sagemaker.serializers")
    deserializers: Any = importlib.import_module("sagemaker.deserializers")
    return predictor.Predictor(
        "desk", session, serializers.DataSerializer(content_type=kind), deserializers.JSONDeserializer()
    )


def test_the_sagemaker_sdk_predicts(simulation: Simulation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As its users write it; the session gets our client, and nothing else is told."""
    monkeypatch.setitem(os.environ, "SAGEMAKER_SUPPRESS_V2_WARNING", "true")
    monkeypatch.setitem(os.environ, "HOME", str(tmp_path))
    import boto3
    from sagemaker.session import Session

    aws = boto3.Session(region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none")
    session = Session(
        aws, sagemaker_client=client_of(simulation.url, "sagemaker"), sagemaker_runtime_client=simulation.client
    )
    for model in BUNDLED:
        body, kind = example(model)
        predictor = predictor_of(session, kind)
        answer: Any = predictor.predict(body, custom_attributes=f"model_name={model}")
        assert len(answer["predictions"]) == 1


@pytest.fixture(scope="module")
def v3(simulation: Simulation, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What tests/simulate/sdk3.py got, after the example of the docs, whose output is "example"."""
    picture, _ = example("resnet")
    source = simulation.s3 / "bucket/picture"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_bytes(picture)
    setting, call = commands("The sagemaker SDK", "docs/simulate.md")
    settings = shlex.split(setting.replace("http://127.0.0.1:8081", simulation.url))[1:]
    code = shlex.split(call.replace('"any"', '"desk"'))[-1]
    done = subprocess.run(
        ["env", *settings, sys.executable, ROOT / "tests/simulate/sdk3.py", code],
        input=picture,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path_factory.mktemp("home")), "PYTHONPATH": str(SDK3)},
        stdout=subprocess.PIPE,
        check=True,
    )
    shown, got = done.stdout.decode().splitlines()
    return {"example": shown, **json.loads(got)}


def close_to(body: bytes) -> Any:
    """The scores of a classification, or the embedding of a text: a batch with another call changes the last digits."""
    return pytest.approx(values(json.loads(body)), abs=1e-4)


def values(answer: Any) -> Any:
    (prediction,) = answer["predictions"]
    return prediction.get("embedding") or {found["label"]: found["score"] for found in prediction["classes"]}


def test_the_sagemaker_sdk_v3_gets_the_answers_of_boto3(simulation: Simulation, v3: Any) -> None:
    image = close_to(invoke(simulation, "resnet", *example("resnet"))["Body"].read())
    assert values(v3["image"]) == image
    assert values(v3["json"]) == close_to(invoke(simulation, "bert", b"hello", "text/plain")["Body"].read())
    assert v3["example"].startswith('b\'{"model_name":"bert"')
    assert (v3["status"], v3["variant"], v3["attributes"]) == ("InService", "AllTraffic", "model_name=resnet")
    output = simulation.s3 / v3["asynchronous"].removeprefix("s3://")
    wait_until(output.exists, "an output in S3")
    assert values(json.loads(output.read_bytes())) == image


def test_the_sagemaker_sdk_v3_opens_continues_and_closes_a_session(v3: Any) -> None:
    assert v3["session"]["new"].partition(";")[0] == v3["session"]["closed"]
    assert 11.0 in [output["data"][0] for output in v3["session"]["sum"]["outputs"]]


def test_the_sagemaker_sdk_v3_says_why_a_call_fails(v3: Any) -> None:
    assert re.match(r'ModelError: .* client error \(400\) .*"code":"decoding_error"', v3["errors"]["body"])
    assert "not a multi-model endpoint" in v3["errors"]["target"]
    assert "Could not find endpoint" in v3["errors"]["name"]


def test_the_stream_call_of_the_sagemaker_sdk_v3_fails_by_itself_and_that_of_its_client_works(v3: Any) -> None:
    """Once it works, docs/simulate.md is to say so."""
    assert v3["errors"]["stream"] == "AttributeError: 'EventStream' object has no attribute 'get'"
    assert values(v3["streamed"]) == close_to(json.dumps(v3["image"]).encode())


def test_describe_endpoint_and_boto3_s_waiter_find_it_in_service(simulation: Simulation) -> None:
    client = client_of(simulation.url, "sagemaker")
    assert client.describe_endpoint(EndpointName="desk")["EndpointStatus"] == "InService"
    client.get_waiter("endpoint_in_service").wait(EndpointName="desk", WaiterConfig={"MaxAttempts": 1})
    with pytest.raises(ClientError, match="ValidationException"):
        client.describe_endpoint(EndpointName="other")
    with pytest.raises(ClientError, match="UnknownOperation"):
        client.list_endpoints()


def test_our_own_container_breaks_no_rule_of_a_start(simulation: Simulation) -> None:
    assert not simulation.journal.complaints.keys() - {"status", "attributes"}
