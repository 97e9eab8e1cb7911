"""Which instance takes a call, and what of it reaches the container."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from serving.headers import SESSION_ID
from simulate.endpoint import LEAST_OUTSTANDING
from simulate.service_model import PASSED_ON
from tests.simulate.simulation import Simulation
from tests.support.harness import wait_until


@pytest.fixture(scope="module")
def simulation() -> Iterator[Simulation]:
    """Two containers that answer with what they were sent."""
    with Simulation(instances=2, routing=LEAST_OUTSTANDING) as running:
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
    absent = {"TargetModel", "TargetContainerHostname", "InferenceComponentName"}
    expected = {header.lower() for member, header in PASSED_ON.items() if member not in absent}
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
    ("arguments", "said"),
    [
        ({"InferenceId": "x" * 65}, "at 'inferenceId' failed to satisfy constraint: Member must have length less than"),
        ({"SessionId": "a b"}, "at 'sessionId' failed to satisfy constraint: Member must satisfy regular expression"),
        ({"SessionId": "unknown"}, "Session unknown does not exist or has expired"),
        ({"TargetContainerHostname": "other"}, "has one container"),
        ({"InferenceComponentName": "part"}, "no components"),
        ({"EndpointName": "any", "TargetModel": "a"}, "Endpoint any is not a multi-model endpoint"),
    ],
)
def test_mistakes_of_the_caller_are_validation_errors(
    simulation: Simulation, arguments: dict[str, str], said: str
) -> None:
    with pytest.raises(ClientError) as caught:
        simulation.client.invoke_endpoint(**{"EndpointName": "any", "Body": b"", **arguments})
    assert caught.value.response["Error"]["Code"] == "ValidationError"
    assert said in caught.value.response["Error"]["Message"]


def test_a_session_stays_with_its_instance_until_it_is_closed(simulation: Simulation) -> None:
    opened = [simulation.invoke(SessionId="NEW_SESSION") for _ in range(40)]  # chance decides between idle instances
    sessions = [reply["NewSessionId"].partition(";")[0] for reply in opened]
    owners = {session: simulation.endpoint.instance_of(session).name for session in sessions}
    assert set(owners.values()) == {"instance 1", "instance 2"}
    for session in sessions * 2:
        simulation.invoke(SessionId=session)
        assert simulation.endpoint.instance_of(session).name == owners[session]
    closed = simulation.invoke(b"close", SessionId=sessions[0])
    assert closed["ClosedSessionId"] == sessions[0]
    with pytest.raises(ClientError, match="does not exist or has expired"):
        simulation.invoke(SessionId=sessions[0])


def calls(simulation: Simulation) -> list[int]:
    return [instance.calls for instance in simulation.endpoint.instances]


def test_the_instance_with_the_fewest_calls_takes_the_next(simulation: Simulation) -> None:
    with ThreadPoolExecutor(4) as threads:
        waiting = []
        try:
            for number in range(1, 5):
                waiting.append(threads.submit(simulation.invoke, b"wait"))
                wait_until(lambda: sum(calls(simulation)) == number, "the call is at an instance")  # noqa: B023
            assert calls(simulation) == [2, 2]
        finally:
            for folder in simulation.endpoint.plan.folder.glob("*/tmp"):
                (folder / "go").touch()
        assert all(call.result() for call in waiting)
    assert calls(simulation) == [0, 0]


def test_while_one_instance_is_down_the_other_takes_all_calls(simulation: Simulation) -> None:
    simulation.endpoint.instances[0].kill()
    answers = Counter(sent(simulation.invoke())["path"] for _ in range(20))
    assert answers == {"/invocations": 20}
    wait_until(lambda: str(simulation.lines).count("in service after") == 3, "another is started")
    wait_until(lambda: len(simulation.endpoint.in_service()) == 2, "it takes calls")
    assert simulation.journal.complaints.total() == 0, simulation.lines
