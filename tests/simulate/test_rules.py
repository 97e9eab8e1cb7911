"""Tests that each rule of the platform is enforced: a container or a caller that breaks it is
stopped, and the rule is reported. Also tests what part of a call reaches the container."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from serving.headers import SESSION_ID
from serving.repository.unpacking import BadArchive
from simulate.container import Container
from simulate.rules import RULES
from tests.simulate.simulation import ENOUGH_TO_ANSWER, Simulation, make_tar
from tests.support.harness import PATIENCE, wait_until

pytestmark = pytest.mark.stack


def fails(code: str, call: Callable[[], object]) -> Any:
    with pytest.raises(ClientError) as caught:
        call()
    assert caught.value.response["Error"]["Code"] == code, caught.value.response
    return caught.value.response


def test_have_a_test_for_every_rule() -> None:
    text = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    assert [rule.id for rule in RULES.values() if f'"{rule.id}"' not in text] == []


def test_fail_the_endpoint_if_the_container_is_never_healthy() -> None:
    for seconds in ENOUGH_TO_ANSWER:
        with Simulation(limits={"start-up": seconds}, BREAKS="start-up") as simulation:
            assert simulation.complained("start-up")
            fails("ValidationError", simulation.invoke)
        if "ill on purpose" in simulation.endpoint.failure:
            return
    raise AssertionError(simulation.endpoint.failure)


def test_fail_the_endpoint_at_once_if_the_container_ends() -> None:
    with Simulation(BREAKS="early-exit") as simulation:
        assert simulation.complained("exit")
        assert "exit code 1" in simulation.endpoint.failure
        assert "container | it ends before it listens" in simulation.lines


@pytest.mark.parametrize(
    ("rule", "limits", "others"),
    [
        ("ping-time", {"ping-time": 1}, {"ping-status"}),
        ("ping-status", {}, set()),
        ("exit", {}, set()),
        ("memory", {}, set()),
    ],
)
def test_replace_a_container_that_is_unhealthy_or_dies(
    rule: str, limits: dict[str, float], others: set[str]
) -> None:
    with Simulation(
        limits=limits, memory=100 * 2**20 if rule == "memory" else 0, BREAKS=rule
    ) as simulation:
        if rule == "exit":
            fails("InternalFailure", simulation.invoke)
        else:
            with contextlib.suppress(ClientError):
                simulation.invoke()  # after this call, the container is unhealthy
        simulation.wait_complaint(rule)
        wait_until(
            lambda: str(simulation.lines).count("in service after") >= 2, "a new one is in service"
        )
    complaints = simulation.journal.complaints
    assert {name for name, count in complaints.items() if count} <= {rule, *others}
    assert complaints["ping-status"] >= 3 or not rule.startswith("ping")


def test_report_a_ping_with_a_body_once() -> None:
    with Simulation(BREAKS="ping-body") as simulation:
        simulation.wait_complaint("ping-body")
        wait_until(
            lambda: json.loads(simulation.invoke()["Body"].read())["pings"] > 3, "some pings more"
        )
        assert simulation.journal.complaints["ping-body"] == 1


def test_kill_a_container_that_ignores_sigterm() -> None:
    with Simulation(limits={"stop": 0.5}, BREAKS="stop") as simulation:
        pass
    assert simulation.complained("stop")


def test_answer_503_if_the_container_takes_no_connection() -> None:
    with Simulation(limits={"ping-interval": 60}, BREAKS="listening") as simulation:
        simulation.invoke()
        fails("ServiceUnavailable", simulation.invoke)
        simulation.wait_complaint("listening")


def test_do_not_report_refused_calls_of_a_killed_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not report them even if the container is killed, and called, while the simulator checks
    it."""
    looks, called = threading.Event(), threading.Event()

    def memory(_: Container) -> int:
        looks.set()
        called.wait(PATIENCE)
        return 0

    monkeypatch.setattr(Container, "memory", memory)
    with Simulation() as simulation:
        looks.wait(PATIENCE)
        simulation.kill()
        fails("ServiceUnavailable", simulation.invoke)
        called.set()
        wait_until(lambda: str(simulation.lines).count("in service after") >= 2, "it is back")
        assert simulation.journal.complaints.total() == 0


def test_report_writes_to_opt_ml_model(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("1")
    with (
        Simulation(model=tmp_path, BREAKS="model-read-only") as simulation,
        contextlib.suppress(ClientError),
    ):
        simulation.invoke()
    assert simulation.complained("model-read-only") or "denied" in str(simulation.lines)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_report_a_port_outside_the_safe_range() -> None:
    with Simulation(BREAKS="safe-ports") as simulation:
        assert simulation.complained("safe-ports")


@pytest.mark.parametrize(("status", "kind"), [(404, "client"), (500, "server"), (507, "server")])
def test_pass_errors_of_the_container_on_as_model_errors(status: int, kind: str) -> None:
    with Simulation(BREAKS="status") as simulation:
        response = fails("ModelError", lambda: simulation.invoke(str(status).encode()))
        assert response["ResponseMetadata"]["HTTPStatusCode"] == 424
        assert response["OriginalStatusCode"] == status
        assert response["OriginalMessage"] == "broken on purpose"
        assert response["LogStreamArn"].startswith("arn:aws:logs:")
        assert f"Received {kind} error ({status}) from primary" in response["Error"]["Message"]
        assert simulation.complained("status") == (status >= 500)


def test_end_a_stream_that_takes_too_long_with_an_error() -> None:
    with Simulation(limits={"stream-time": 3}, BREAKS="stream-time") as simulation:
        body = simulation.client.invoke_endpoint_with_response_stream(
            EndpointName="any", Body=b"{}"
        )["Body"]
        received = []
        with pytest.raises(ClientError) as caught:
            # this only reads the stream; the list is lost with the exception
            received += [event["PayloadPart"]["Bytes"] for event in body]
        assert caught.value.response["Error"]["Code"] == "ModelStreamError"
        assert simulation.complained("stream-time")


def test_return_the_parts_of_a_cut_stream_and_then_an_error() -> None:
    with Simulation(BREAKS="stream") as simulation:
        body = simulation.client.invoke_endpoint_with_response_stream(
            EndpointName="any", Body=b"{}"
        )["Body"]
        received = []
        with pytest.raises(ClientError) as caught:
            for event in body:
                received.append(event["PayloadPart"]["Bytes"])
        assert received == [b"one"]
        assert "ModelStreamError" in str(caught.value)


def test_write_a_failure_to_s3_if_an_asynchronous_call_is_late() -> None:
    with Simulation(limits={"async-time": 0.5}, BREAKS="async-time") as simulation:
        accepted = simulation.client.invoke_endpoint_async(EndpointName="any", Body=b"{}")
        failure = simulation.s3 / accepted["FailureLocation"].removeprefix("s3://")
        wait_until(failure.exists, "a failure in S3")
        assert "timed out" in failure.read_text()
        assert simulation.complained("async-time")


def test_refuse_or_drop_what_exceeds_the_limits_of_the_api(tmp_path: Path) -> None:
    """The rules are body, async-inline, async-body, headers, query and attributes."""
    limits = {"body": 1000, "async-inline": 100, "async-body": 1000}
    with Simulation(limits=limits) as simulation:
        assert (
            "at 'body'"
            in fails("ValidationError", lambda: simulation.invoke(bytes(1001)))["Error"]["Message"]
        )
        call = simulation.client.invoke_endpoint_async
        fails("ValidationError", lambda: call(EndpointName="any", Body=bytes(101)))
        large = simulation.s3 / "bucket/large"
        large.parent.mkdir(parents=True)
        large.write_bytes(bytes(1001))
        accepted = call(EndpointName="any", InputLocation="s3://bucket/large")
        failure = simulation.s3 / accepted["FailureLocation"].removeprefix("s3://")
        wait_until(failure.exists, "a failure in S3")
        for attributes in ("x" * 1025, "ü"):
            fails("ValidationError", partial(raw, simulation, attributes))
        simulation.client.meta.events.register("before-sign.*", add_what_is_dropped)
        sent = json.loads(simulation.invoke()["Body"].read())
        assert sent["path"] == "/invocations"
        assert "X-Mine" not in sent["headers"]
        for rule in ("body", "async-inline", "async-body", "headers", "query"):
            assert simulation.complained(rule), rule


def raw(simulation: Simulation, attributes: str) -> None:
    """Send a call without botocore's validation."""
    import http.client

    connection = http.client.HTTPConnection(simulation.url.removeprefix("http://"))
    connection.request(
        "POST",
        "/endpoints/any/invocations",
        b"{}",
        {"X-Amzn-SageMaker-Custom-Attributes": attributes},
    )
    reply = connection.getresponse()
    assert reply.status == 400
    raise ClientError({"Error": {"Code": reply.headers["x-amzn-ErrorType"]}}, "InvokeEndpoint")


def add_what_is_dropped(request: Any, **_: object) -> None:
    request.headers["X-Mine"] = "1"
    request.url += "?model_name=resnet"


@pytest.mark.parametrize("rule", ["attributes", "session"])
def test_report_reply_headers_that_the_platform_does_not_accept(rule: str) -> None:
    with Simulation(BREAKS=rule) as simulation:
        reply = simulation.invoke()
        assert "CustomAttributes" not in reply or reply["CustomAttributes"] == ""
        assert simulation.complained(rule)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Make archives, which this container accepts without opening them."""
    for name in ("a", "b", "c"):
        make_tar(tmp_path / f"{name}.tar.gz", {"config.pbtxt": name})
    make_tar(tmp_path / "wicked.tar.gz", {"../../escaped": "x"})
    (tmp_path / "broken.tar.gz").write_bytes(b"no archive")
    return tmp_path


@pytest.mark.parametrize("name", ["wicked", "broken"])
def test_refuse_an_unreadable_archive_or_one_that_leaves_its_folder(store: Path, name: str) -> None:
    with Simulation(models=store) as simulation:
        fails("ValidationError", lambda: simulation.invoke(TargetModel=f"{name}.tar.gz"))
        assert simulation.complained("archive")
        assert not list(simulation.endpoint.launch.folder.rglob("escaped"))


def test_answer_internal_failure_if_the_container_ends_in_a_load(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, removed = threading.Event(), threading.Event()

    def unpack_too_late(archive: Path, _: Path) -> None:
        begun.set()
        removed.wait(PATIENCE)
        raise BadArchive(f"{archive.name} cannot be unpacked: its folder is gone")

    monkeypatch.setattr("simulate.models.unpack", unpack_too_late)
    with Simulation(models=store) as simulation, ThreadPoolExecutor(1) as threads:
        call = threads.submit(simulation.invoke, TargetModel="a.tar.gz")
        begun.wait(PATIENCE)
        simulation.kill()
        wait_until(lambda: "the container was killed" in str(simulation.lines), "its end is seen")
        wait_until(
            lambda: str(simulation.lines).count("in service after") >= 2, "another is started"
        )
        removed.set()
        fails("InternalFailure", call.result)
        assert simulation.journal.complaints.total() == 0


@pytest.mark.parametrize(
    ("rule", "limit", "status"),
    [
        ("network", None, 500),
        ("reply-body", 1000, 200),
        ("time", 0.5, 0),
        ("load-status", None, 500),
        ("load-time", 0.4, 0),
    ],
)
def test_convert_an_answer_that_breaks_a_rule_to_an_error(
    rule: str, limit: float | None, status: int, store: Path
) -> None:
    models = store if rule.startswith("load") else None
    with Simulation(
        models=models, limits={rule: limit} if limit else {}, BREAKS=rule
    ) as simulation:
        arguments = {"TargetModel": "a.tar.gz"} if models else {}
        response = fails("ModelError", lambda: simulation.invoke(b"{}", **arguments))
        assert response["OriginalStatusCode"] == status
        simulation.wait_complaint(rule)


def test_let_a_load_slower_than_the_call_finish(store: Path) -> None:
    with Simulation(models=store, limits={"time": 4}, BREAKS="load-time", SLOW="8") as simulation:
        response = fails(
            "ModelNotReadyException", lambda: simulation.invoke(TargetModel="a.tar.gz")
        )
        assert response["ResponseMetadata"]["HTTPStatusCode"] == 429
        wait_until(lambda: simulation.journal.counts["loads"] == 1, "the load ends")
        assert simulation.invoke(TargetModel="a.tar.gz")["Body"].read() == b"a.tar.gz"


@pytest.mark.parametrize("rule", ["unload-status", "unload-time"])
def test_report_a_failed_or_late_unload_and_answer_other_calls(store: Path, rule: str) -> None:
    limits = {rule: 3} if rule == "unload-time" else {}
    with Simulation(models=store, limits=limits, BREAKS=rule, CAPACITY="1") as simulation:
        simulation.invoke(TargetModel="a.tar.gz")
        assert simulation.invoke(TargetModel="b.tar.gz")["Body"].read() == b"b.tar.gz"
        assert simulation.complained(rule)


def test_load_a_model_again_that_the_container_lost(store: Path) -> None:
    with Simulation(models=store, BREAKS="lost-model") as simulation:
        assert simulation.invoke(TargetModel="a.tar.gz")["Body"].read() == b"a.tar.gz"
        assert simulation.complained("lost-model")
        assert simulation.journal.counts["loads"] == 2


@pytest.fixture(scope="module")
def simulation() -> Iterator[Simulation]:
    """Start a container that answers with what it received."""
    with Simulation() as running:
        yield running


def sent(reply: Any) -> Any:
    return json.loads(reply["Body"].read())


def test_forward_exactly_the_headers_of_the_api(simulation: Simulation) -> None:
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
    names = ("content-type", "accept", SESSION_ID.lower())
    assert [arrived[name] for name in names] == ["text/x", "text/y", "NEW_SESSION"]


def test_use_the_api_s_own_headers_for_accept_and_type_of_a_stream(simulation: Simulation) -> None:
    types = {"ContentType": "text/x", "Accept": "text/y"}
    reply = simulation.client.invoke_endpoint_with_response_stream(
        EndpointName="any", Body=b"x", **types
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
def test_answer_mistakes_of_callers_with_validation_errors(
    simulation: Simulation, arguments: dict[str, str], named: str
) -> None:
    with pytest.raises(ClientError) as caught:
        simulation.client.invoke_endpoint(**{"EndpointName": "any", "Body": b"", **arguments})
    assert caught.value.response["Error"]["Code"] == "ValidationError"
    assert named in caught.value.response["Error"]["Message"]


def test_keep_a_session_until_it_is_closed_or_its_container_ends(simulation: Simulation) -> None:
    first, second = (
        simulation.invoke(SessionId="NEW_SESSION")["NewSessionId"].partition(";")[0]
        for _ in range(2)
    )
    for session in (first, second):
        simulation.invoke(SessionId=session)
    assert simulation.invoke(b"close", SessionId=first)["ClosedSessionId"] == first
    with pytest.raises(simulation.client.exceptions.ValidationError):
        simulation.invoke(SessionId=first)
    simulation.kill()
    wait_until(
        lambda: str(simulation.lines).count("in service after") == 2,
        "another container is in service",
    )
    with pytest.raises(simulation.client.exceptions.ValidationError):
        simulation.invoke(SessionId=second)
    assert simulation.journal.complaints.total() == 0, simulation.lines
