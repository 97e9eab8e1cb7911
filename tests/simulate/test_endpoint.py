"""What of a call reaches the container."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from serving.headers import SESSION_ID
from tests.simulate.simulation import Simulation
from tests.support.harness import wait_until

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def simulation() -> Iterator[Simulation]:
    """A container that answers with what it was sent."""
    with Simulation() as running:
        yield running


def sent(reply: Any) -> Any:
    return json.loads(reply["Body"].read())


def test_every_header_of_the_api_arrives_and_no_other(simulation: Simulation) -> None:
    reply = simulation.invoke(
        b"body",
        ContentType="text/x",
        Accept="text/y",
        CustomAttributes="a=b",
        TargetVariant="AllTraffic",
        InferenceId="id",
        EnableExplanations="`true`",
        SessionId="NEW_SESSION",
    )
    assert reply["NewSessionId"].endswith("; Expires=2099-01-01T00:00:00Z")
    assert reply["CustomAttributes"] == "a=b"
    arrived = {name.lower(): value for name, value in sent(reply)["headers"].items()}
    own = "custom-attributes target-variant inference-id enable-explanations session-id"
    expected = {"content-type", "accept", *(f"x-amzn-sagemaker-{name}" for name in own.split())}
    assert set(arrived) - {"host", "accept-encoding", "content-length", "user-agent"} == expected
    assert (arrived["content-type"], arrived["accept"], arrived[SESSION_ID.lower()]) == (
        "text/x",
        "text/y",
        "NEW_SESSION",
    )


def test_a_stream_s_accept_and_content_type_have_headers_of_their_own(simulation: Simulation) -> None:
    reply = simulation.client.invoke_endpoint_with_response_stream(
        EndpointName="any", Body=b"x", ContentType="text/x", Accept="text/y"
    )
    seen = json.loads(b"".join(event["PayloadPart"]["Bytes"] for event in reply["Body"]))
    assert reply["ContentType"] == "application/json"
    headers = {name.lower(): value for name, value in seen["headers"].items()}
    assert (headers["content-type"], headers["accept"]) == ("text/x", "text/y")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"InferenceId": "x" * 65}, "'inferenceId'"),
        ({"SessionId": "a b"}, "'sessionId'"),
        ({"SessionId": "unknown"}, "unknown"),
        ({"TargetContainerHostname": "other"}, "container"),
        ({"InferenceComponentName": "part"}, "components"),
        ({"TargetVariant": "B"}, "B"),
        ({"EndpointName": "any", "TargetModel": "a"}, "any"),
    ],
)
def test_mistakes_of_the_caller_are_validation_errors(
    simulation: Simulation, arguments: dict[str, str], named: str
) -> None:
    with pytest.raises(ClientError) as caught:
        simulation.client.invoke_endpoint(**{"EndpointName": "any", "Body": b"", **arguments})
    assert caught.value.response["Error"]["Code"] == "ValidationError"
    assert named in caught.value.response["Error"]["Message"]


def test_a_session_lives_until_it_is_closed_or_its_container_ends(simulation: Simulation) -> None:
    first, second = (simulation.invoke(SessionId="NEW_SESSION")["NewSessionId"].partition(";")[0] for _ in range(2))
    for session in (first, second):
        simulation.invoke(SessionId=session)
    assert simulation.invoke(b"close", SessionId=first)["ClosedSessionId"] == first
    with pytest.raises(simulation.client.exceptions.ValidationError):
        simulation.invoke(SessionId=first)
    simulation.kill()
    wait_until(lambda: str(simulation.lines).count("in service after") == 2, "another container is in service")
    with pytest.raises(simulation.client.exceptions.ValidationError):
        simulation.invoke(SessionId=second)
    assert simulation.journal.complaints.total() == 0, simulation.lines
