"""Tests GET /metrics: one valid Prometheus text with the counts of all workers and of Triton, even
after processes have died."""

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from flask import Response
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from werkzeug.test import create_environ

from predictor import create_app
from serving.front.incoming import Incoming
from serving.front.metrics import MOST_MODELS, OTHER, Metrics
from serving.request import STAGES
from serving.settings.settings import Settings
from tests.support.harness import (
    PATIENCE,
    Server,
    make_both_scales,
    make_sleeper,
    tensor,
    wait_until,
)

pytestmark = pytest.mark.stack

TENSORS = {"inputs": [tensor([1, 2])], "model_name": "scale"}

# The parser adds _total to the names of counters that lack it, such as Triton's.
IN_TRITON = "nv_inference_request_success_total"
# A stand-in for the CloudWatch agent, which is not available here. It records its arguments and
# environment, and keeps running.
AGENT = """#!/bin/sh
printf '%s' "$CW_CONFIG_CONTENT" > agent-configuration.json
printf '%s' "$RUN_IN_CONTAINER" > agent-in-container
echo "$$" >> agent-starts
exec sleep 1000
"""


def parse(text: str) -> dict[str, Metric]:
    """Return the metric families by name. Assert that no name and no series occurs twice."""
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert sorted(names) == sorted(set(names))
    series = [
        (sample.name, *sorted(sample.labels.items()))
        for family in families
        for sample in family.samples
    ]
    assert len(series) == len(set(series))
    return {family.name: family for family in families}


def value(metrics: dict[str, Metric], sample_name: str, **labels: str) -> float:
    samples = [
        sample
        for family in metrics.values()
        for sample in family.samples
        if sample.name == sample_name
    ]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def scrape(server: Server) -> dict[str, Metric]:
    reply = server.scrape()
    assert reply.status_code == 200
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(reply.text)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server with the agent and two repositories. One has a folder around the models, the
    other a folder that is not a model."""
    folder = tmp_path_factory.mktemp("serve")
    make_both_scales(folder / "first")
    (folder / "first/code").mkdir()
    make_sleeper(folder / "second/top")
    agent = {
        "SAGEMAKER_TRITON_PUBLISH_METRICS_TO_CLOUDWATCH": "true",
        "SAGEMAKER_TRITON_CLOUDWATCH_LOG_GROUP": "/my/group",
        "SAGEMAKER_TRITON_CLOUDWATCH_METRIC_NAMESPACE": "Mine",
        "PATH": path_with_agent(folder, AGENT),
        "AWS_REGION": "eu-central-1",
    }
    variables = {
        "SERVE_MODEL_REPOSITORY": f"{folder}/first:{folder}/second",
        "SERVE_WORKERS": "3",
        **agent,
    }
    running = Server(folder, folder, SERVE_LOG_LEVEL="warning", **variables).wait_ready()
    yield running
    running.stop_later()


def path_with_agent(folder: Path, script: str) -> str:
    agent = folder / "start-amazon-cloudwatch-agent"
    agent.write_text(script)
    agent.chmod(agent.stat().st_mode | stat.S_IXUSR)
    return f"{folder}:{os.environ['PATH']}"


def call(server: Server, seconds: float = 0) -> requests.Response:
    return server.post(json={"instances": [seconds], "model_name": "sleeper"})


def with_example(server: Server) -> dict[str, Metric]:
    """Return the expected counts, including the example of the sleeper."""
    metrics = scrape(server)
    return metrics if value(metrics, IN_TRITON, model="sleeper") else {}


def test_count_requests_of_all_workers(server: Server) -> None:
    before = wait_until(lambda: with_example(server), "Triton has counted the example")
    padded = json.dumps(TENSORS | {"model_version": "1"}).ljust(5000).encode()
    replies = [server.post(data=padded), server.post(json=TENSORS | {"model_version": "2"})]
    replies += [call(server) for _ in range(30)]
    assert {reply.status_code for reply in replies} == {200}
    all_counted = value(before, IN_TRITON, model="sleeper") + 30
    wait_until(
        lambda: value(scrape(server), IN_TRITON, model="sleeper") >= all_counted,
        "Triton counts its answers",
    )
    after = scrape(server)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert grown("serve_requests_total", model="sleeper", version="1", code="200") == 30
    assert grown("serve_requests_total", model="scale", version="1", code="200") == 1
    assert grown("serve_requests_total", model="scale", version="2", code="200") == 1
    assert grown("serve_request_seconds_count", model="sleeper") == 30
    assert grown("serve_request_bytes_count") == grown("serve_response_bytes_count") == 32
    assert grown("serve_request_bytes_sum") == sum(
        len(reply.request.body or "") for reply in replies
    )
    assert grown("serve_response_bytes_sum") == sum(len(reply.content) for reply in replies)
    for name in STAGES:
        assert grown("serve_stage_seconds_count", model="sleeper", stage=name) == (
            0 if name == "load" else 30
        )
        assert grown("serve_stage_seconds_count", model="scale", stage=name) == (
            2 if name == "triton" else 0
        )


def test_measure_triton_s_time_in_the_triton_stage(server: Server) -> None:
    before = scrape(server)
    reply = call(server, 0.4)
    after = scrape(server)
    grown = {
        name: value(after, "serve_stage_seconds_sum", model="sleeper", stage=name)
        - value(before, "serve_stage_seconds_sum", model="sleeper", stage=name)
        for name in STAGES
        if name != "load"
    }
    assert grown["triton"] >= 0.4
    shown = dict(part.split(";dur=") for part in reply.headers["Server-Timing"].split(", "))
    assert {name: pytest.approx(1000 * seconds, abs=0.001) for name, seconds in grown.items()} == {
        name: float(milliseconds) for name, milliseconds in shown.items()
    }


def test_add_no_series_for_an_invented_model_name(server: Server) -> None:
    before = scrape(server)
    for number in range(5):
        assert (
            server.post(json={"instances": [0], "model_name": f"made-up-{number}"}).status_code
            == 404
        )
        assert server.post(f"/made-up-{number}").status_code == 404
    # requests for /ping and /metrics are not counted
    assert (server.post(data=b"").status_code, server.ping()) == (400, 200)
    after = scrape(server)
    assert "made-up" not in server.scrape().text
    assert value(after, "serve_requests_total", model="", version="", code="404") >= 5
    assert value(after, "serve_requests_total") - value(before, "serve_requests_total") == 6


def test_keep_counts_but_nothing_in_flight_with_new_workers(server: Server) -> None:
    before = value(scrape(server), "serve_requests_total", code="200")
    workers = server.workers()
    assert len(workers) == 3
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not [pid for pid in workers if pid in server.processes()], "they are gone")
    server.wait_ready()
    assert value(scrape(server), "serve_requests_total", code="200") == before
    server.replace("gunicorn")
    server.wait_ready()
    assert call(server).status_code == 200
    after = scrape(server)
    assert value(after, "serve_requests_total", code="200") == before + 1
    assert value(after, "serve_process_starts_total", process="gunicorn") == 2
    assert value(after, "serve_in_flight") == 0


def test_return_metrics_of_the_front_while_triton_is_down(server: Server) -> None:
    assert call(server).status_code == 200
    assert value(scrape(server), "serve_triton_up") == 1
    starts = value(scrape(server), "serve_process_starts_total", process="tritonserver")
    with server.unattended():  # the supervisor would end a process that does not answer for long
        os.kill(server.pid("tritonserver"), signal.SIGSTOP)
        wait_until(lambda: value(scrape(server), "serve_triton_up") == 0, "it stands still")
        down = scrape(server)
        os.kill(server.pid("tritonserver"), signal.SIGKILL)
    assert "serve_requests" in down
    assert not [name for name in down if name.startswith("nv_")]
    wait_until(lambda: value(scrape(server), "serve_triton_up") == 1, "Triton's metrics")
    server.wait_ready()
    assert value(scrape(server), "serve_process_starts_total", process="tritonserver") == starts + 1


def test_start_the_cloudwatch_agent_with_its_configuration(server: Server) -> None:
    started = server.run_dir / "agent-starts"
    wait_until(started.exists, "the agent has started")
    assert (server.run_dir / "agent-in-container").read_text() == "True"
    configuration = json.loads((server.run_dir / "agent-configuration.json").read_text())
    assert configuration == json.loads((server.run_dir / "cloudwatch.json").read_text())
    prometheus = configuration["logs"]["metrics_collected"]["prometheus"]
    assert configuration["agent"]["region"] == "eu-central-1"
    assert prometheus["log_group_name"] == "/my/group"
    assert prometheus["emf_processor"]["metric_namespace"] == "Mine"
    scraped = json.loads(Path(prometheus["prometheus_config_path"]).read_text())["scrape_configs"][
        0
    ]
    target, path = scraped["static_configs"][0]["targets"][0], scraped["metrics_path"]
    assert "serve_triton_up 1.0" in requests.get(f"http://{target}{path}", timeout=PATIENCE).text
    os.kill(server.pid("cloudwatch-agent"), signal.SIGKILL)
    wait_until(lambda: len(started.read_text().splitlines()) == 2, "a new agent")
    assert server.ping() == 200


def test_serve_models_of_every_repository_by_name(server: Server) -> None:
    assert server.post(json=TENSORS).json()["outputs"][0]["data"] == [3, 6]
    assert call(server, 0.5).json()["predictions"] == [0.5], (
        "its client.py was found in the second repository"
    )
    assert server.post(json=TENSORS | {"model_name": "code"}).status_code == 404
    server.expect_message("first/code")
    server.expect_message("'top'")


def test_log_only_refused_requests_at_the_level_warning(server: Server) -> None:
    statuses = {}
    for model in ("scale", "nope"):
        headers = {"X-Amzn-SageMaker-Inference-Id": f"asks-{model}"}
        statuses[model] = server.post(
            json=TENSORS | {"model_name": model}, headers=headers
        ).status_code
    assert statuses == {"scale": 200, "nope": 404}
    wait_until(lambda: server.entries("nginx", request_id="asks-nope"), "the refused one is logged")
    assert server.entries(request_id="asks-scale") == []


def test_return_metrics_of_the_app_without_serve() -> None:
    client = create_app(Settings.from_env({})).test_client()
    assert client.post("/invocations", data=b"").status_code == 400
    metrics = parse(client.get("/metrics").text)
    assert value(metrics, "serve_requests_total", model="", version="", code="400") == 1
    assert value(metrics, "serve_triton_up") == 0


def count(metrics: Metrics, model: str) -> None:
    source = Incoming(create_environ())
    source.model, source.version = model, "1"
    source.timings.update(dict.fromkeys(STAGES, 0.005))
    metrics.count(source, Response(), 0.02)


def test_report_models_beyond_the_maximum_under_one_name() -> None:
    metrics = Metrics()
    for number in range(MOST_MODELS + 50):
        count(metrics, f"model-{number}")
    shown = parse(generate_latest(metrics.registry).decode())
    models = {sample.labels["model"] for sample in shown["serve_requests"].samples}
    assert len(models) == MOST_MODELS + 1
    assert value(shown, "serve_requests_total", model=OTHER, version="", code="200") == 50
    assert value(shown, "serve_requests_total") == MOST_MODELS + 50


def test_write_valid_metrics_for_any_model_name() -> None:
    metrics = Metrics()
    for name in ('quo"te', "back\\slash", "new\nline", "Zürich", "{}=,"):
        count(metrics, name)
        assert (
            value(
                parse(generate_latest(metrics.registry).decode()),
                "serve_requests_total",
                model=name,
            )
            == 1
        )
