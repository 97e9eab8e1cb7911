"""The table of processes that `serve` watches: their command lines and environments. tritonserver's is in triton.py."""

import json
import math
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from serving.host.network import bracketed, reached
from serving.settings.handed_on import LOG_GROUP, METRIC_NAMESPACE
from serving.settings.table import SECRETS, Settings
from serving.supervisor.nginx import MALLOC_THRESHOLD, nginx
from serving.supervisor.system import Process
from serving.supervisor.triton import triton

HERE = Path(__file__).resolve().parents[2]


AGENT = "start-amazon-cloudwatch-agent"
AGENT_FOLDER = "/opt/aws/amazon-cloudwatch-agent/bin"  # where AWS's package installs it
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


def table(settings: Settings, environ: Mapping[str, str], listeners: Sequence[socket.socket] = ()) -> list[Process]:
    """The processes in the order of their start; FileNotFoundError names a program that is missing. nginx inherits the
    listeners."""
    python = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    # Without the first ONNX Runtime writes a database below HOME and calls its maker's servers.
    quiet = {"ORT_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1"}
    front = {**environ, **settings.environment(), **python, **quiet}
    common = {name: value for name, value in front.items() if name not in SECRETS}  # only the front needs them
    needed = [triton(settings, common), manager(settings, common), gunicorn(settings, front)]
    return [*needed, nginx(settings, common, listeners), *cloudwatch_agent(settings, common)]


def gunicorn(settings: Settings, environ: Mapping[str, str]) -> Process:
    """A worker accepts no more connections than it has threads, so that no request waits behind a busy one
    while another worker is free. gunicorn itself replaces workers that hang."""
    flags = {
        "bind": f"unix:{settings.gunicorn_socket}",
        "chdir": HERE,
        "worker-class": "gthread",
        "workers": settings.workers,
        "threads": settings.threads,
        "worker-connections": settings.threads,
        "keep-alive": 0,
        # nginx limits the request line, the headers and the methods, and answers in our JSON shape.
        "limit-request-line": 0,
        "limit-request-fields": 32768,
        "timeout": math.ceil(settings.hang_timeout),
        "graceful-timeout": max(1, math.ceil(settings.stop_timeout)),
        "worker-tmp-dir": settings.run_dir,
        "log-level": settings.log_level,
        # Else it trusts SCRIPT_NAME and PATH_INFO: it takes the peer of a unix socket for a proxy that sets them.
        "forwarder-headers": "",
        "config": "python:serving.front.gunicorn_config",
    }
    command = [sys.executable, "-m", "gunicorn", "wsgi:app", "--preload", "--no-control-socket"]
    command += ["--permit-unconventional-http-method"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"), "1")
    one_thread["TOKENIZERS_PARALLELISM"] = "false"
    # A worker keeps freed memory for the next request until it is idle (front/idle.py): without that, page faults take
    # two fifths of its time with images. One arena, because malloc_trim leaves the ends of all others.
    heap = {
        "MALLOC_MMAP_THRESHOLD_": MALLOC_THRESHOLD,
        "MALLOC_TRIM_THRESHOLD_": MALLOC_THRESHOLD,
        "MALLOC_ARENA_MAX": "1",
    }
    counts = {"PROMETHEUS_MULTIPROC_DIR": str(emptied(settings.run_dir / "metrics"))}
    environ = {**environ, **one_thread, **heap, **counts}
    return Process("gunicorn", tuple(command), environ, HERE, writes_log=True)


def emptied(folder: Path) -> Path:
    """The folder, new; what is in it counts from our start."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def find_agent(environ: Mapping[str, str]) -> str | None:
    """The agent's program, on the PATH or where AWS's package installs it; None when it is not installed."""
    return shutil.which(AGENT, path=f"{environ.get('PATH', os.defpath)}:{AGENT_FOLDER}")


def agent_environment(settings: Settings, address: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the agent's variables, and write prometheus.yaml and cloudwatch.json into the run folder.

    The agent scrapes /metrics at `address`, "host:port", and writes CloudWatch's embedded metric format. In a container
    (RUN_IN_CONTAINER) it reads its configuration from CW_CONFIG_CONTENT, so nothing has to be written below /etc.
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


def cloudwatch_agent(settings: Settings, environ: Mapping[str, str]) -> list[Process]:
    """No process where it is not asked for, or not installed (`serve` warns of that)."""
    program = find_agent(environ) if settings.cloudwatch else None
    if not program:
        return []
    host, port = ping_address(settings)
    own = agent_environment(settings, f"{bracketed(host)}:{port}", environ)
    return [Process("cloudwatch-agent", (program,), {**environ, **own}, settings.run_dir, optional=True)]


def manager(settings: Settings, environ: Mapping[str, str]) -> Process:
    """The process that loads, unloads and recovers models. A SIGHUP has it look at folders that are watched."""
    command = (sys.executable, "-m", "serving.model_manager")
    passed_on = (signal.SIGHUP,) if settings.reloads else ()
    alive = (settings.manager_socket, "/")
    return Process("manager", command, environ, HERE, answers_at=alive, passed_on=passed_on)


def ping_address(settings: Settings) -> tuple[str, int]:
    return reached(settings.host), settings.port
