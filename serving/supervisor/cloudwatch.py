"""The CloudWatch agent's configuration: it scrapes /metrics and writes CloudWatch's embedded metric format.

In a container (RUN_IN_CONTAINER) the agent reads its configuration from the variable CW_CONFIG_CONTENT (see
aws/amazon-cloudwatch-agent), so nothing has to be written below /etc; what it scrapes is in the run folder.
"""

import json
import os
import shutil
from collections.abc import Mapping

from serving.settings.handed_on import LOG_GROUP, METRIC_NAMESPACE
from serving.settings.table import Settings

PROGRAM = "start-amazon-cloudwatch-agent"
FOLDER = "/opt/aws/amazon-cloudwatch-agent/bin"  # where AWS's package installs it
DECLARATION = ("source_labels", "label_matcher", "dimensions", "metric_selectors")
# CloudWatch stores no other series than these.
DECLARATIONS = (
    (["code"], ".+", [["model", "version", "code"], ["code"]], ["^serve_requests_total$"]),
    (["stage"], ".+", [["model", "stage"]], ["^serve_stage_seconds_(sum|count)$"]),
    (["result"], ".+", [["result"]], ["^serve_model_(loads|unloads)_total$"]),
    (["process"], ".+", [["process"]], ["^serve_process_starts_total$"]),
    (["gpu_uuid"], ".+", [["gpu_uuid"]], ["^nv_gpu_"]),
    (["model"], ".+", [["model", "version"], ["model"]], ["^nv_inference_", "^serve_request_seconds_(sum|count)$"]),
    (["job"], "^triton$", [["job"]], ["^serve_(in_flight|triton_up)$", "^nv_(cpu|energy|pinned)_"]),
)


def find_agent(environ: Mapping[str, str]) -> str | None:
    """The agent's program, on the PATH or where AWS's package installs it; None when it is not installed."""
    return shutil.which(PROGRAM, path=f"{environ.get('PATH', os.defpath)}:{FOLDER}")


def agent_environment(settings: Settings, address: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What the agent is started with, beside the container's own variables (the region, the credentials).

    Writes prometheus.yaml and cloudwatch.json into the run folder; `address` is "host:port" of /metrics.
    """
    scrape_file = settings.run_dir / "prometheus.yaml"
    job = {"job_name": "triton", "metrics_path": "/metrics", "static_configs": [{"targets": [address]}]}
    scrape = {"global": {"scrape_interval": "60s", "scrape_timeout": "10s"}, "scrape_configs": [job]}
    scrape_file.write_text(json.dumps(scrape, indent=2), encoding="utf-8")  # JSON is a part of YAML
    processor = {
        "metric_declaration_dedup": True,
        "metric_namespace": METRIC_NAMESPACE.read(environ),
        "metric_declaration": [dict(zip(DECLARATION, each, strict=True)) for each in DECLARATIONS],
    }
    prometheus = {
        "log_group_name": LOG_GROUP.read(environ),
        "prometheus_config_path": str(scrape_file),
        "emf_processor": processor,
    }
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")  # else the agent asks the machine for it
    agent = {"region": region} if region else {}
    configuration = json.dumps({"agent": agent, "logs": {"metrics_collected": {"prometheus": prometheus}}}, indent=2)
    (settings.run_dir / "cloudwatch.json").write_text(configuration, encoding="utf-8")
    return {"RUN_IN_CONTAINER": "True", "CW_CONFIG_CONTENT": configuration}
