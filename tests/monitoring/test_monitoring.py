"""Tests docs/monitoring: promtool accepts the alerts, and every metric that the alerts and the
dashboard name exists after some load."""

import json
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.faults.calls import IMAGE, make_exiter
from tests.support.harness import (
    ROOT,
    Server,
    link_model,
    make_scale,
    module_server,
    tensor,
    wait_until,
)

pytestmark = pytest.mark.stack

FOLDER = ROOT / "docs/monitoring"
METRIC = re.compile(r"\b(?:serve|nv)_\w+")
started = module_server(
    make_scale, make_exiter, partial(link_model, IMAGE.parent), SERVE_WORKERS="1"
)


@pytest.fixture(scope="module")
def server(started: Server) -> Server:
    """Return the server after it has had requests of every kind, an error and the death of a
    process."""
    headers = {"Content-Type": "image/png"}
    assert (
        started.post(
            params={"model_name": "resnet"}, data=IMAGE.read_bytes(), headers=headers
        ).status_code
        == 200
    )
    assert (
        started.post(params={"model_name": "resnet"}, data=b"no image", headers=headers).status_code
        == 400
    )
    one = tensor([13], [1])
    assert started.post(params={"model_name": "exiter"}, json={"inputs": [one]}).status_code == 503
    return started


def expressions() -> Iterator[str]:
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])
    for panel in json.loads((FOLDER / "dashboard.json").read_text())["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def test_export_every_metric_that_the_dashboard_names(server: Server) -> None:
    """Some metrics are counted after the reply, and Triton's are missing while it is slow."""
    named = {name for expression in expressions() for name in METRIC.findall(expression)}

    def missing() -> set[str]:
        return named - set(re.findall(r"^(\w+)[{ ]", server.get("/metrics").text, re.MULTILINE))

    assert named
    wait_until(lambda: not missing(), lambda: f"all are there but {sorted(missing())}")


def promtool(rules: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["promtool", "check", "rules", str(rules)], capture_output=True, text=True, check=False
    )


def test_load_the_alerts_with_promtool() -> None:
    done = promtool(FOLDER / "alerts.yaml")
    assert done.returncode == 0, done.stderr


def test_parse_the_expressions_of_the_dashboard_with_promtool(tmp_path: Path) -> None:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    plain = [each.replace("$__rate_interval", "1m").replace("$instance", ".*") for each in queries]
    rules = [
        {"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(plain)
    ]
    (tmp_path / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]})
    )
    done = promtool(tmp_path / "rules.yaml")
    assert done.returncode == 0, done.stderr
