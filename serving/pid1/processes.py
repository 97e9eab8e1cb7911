"""Describes the processes that `serve` supervises: their command lines, environments and
configuration files. nginx.py describes nginx."""

import glob
import json
import math
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from serving.host import tritonserver
from serving.host.files import replace_file
from serving.host.machine import gpu_count
from serving.pid1.nginx import MALLOC_THRESHOLD, bracketed, nginx, ping_address
from serving.pid1.resources import new_prefix
from serving.pid1.system import Process
from serving.settings.settings import GRPC_PORT, SECRETS, Settings

ROOT = Path(__file__).resolve().parents[2]
AGENT = "start-amazon-cloudwatch-agent"
AGENT_FOLDER = "/opt/aws/amazon-cloudwatch-agent/bin"  # where AWS's package installs it
AGENT_TEMPLATE = Path(__file__).with_name("cloudwatch.json")
# Maximum seconds that tritonserver gets to exit. nginx and gunicorn are stopped first, so it would
# only wait for instances that hang or have died.
EXIT_SECONDS = 5
# Threads that tritonserver starts for each instance of a model on a Python-based backend if calls
# load the models. There may be 1,000 models, too many for the default of 32 threads each.
PYTHON_THREADS = 4
LOADS_AT_ONCE = 32  # maximum number of loads at a time if models are loaded by calls
# How long idle threads of OpenBLAS spin, as a power of two: 2^16 cycles are about 25 µs. By default
# they spin for 2^28 cycles (0.1 s) after each product of large matrices (OpenBLAS's blas_server.c),
# although other threads may need the processors.
OPENBLAS_SPINNING = "16"
# How many times an idle thread of OpenMP checks for work before it sleeps. 10,000 checks last from
# one operator of a network to the next. The default is 300,000 (GOMP_SPINCOUNT in libgomp's
# manual).
OPENMP_SPINNING = "10000"
# Lines of tritonserver's output that are dropped: the usage, which would hide the message about an
# invalid option; empty lines and tables; messages of the library evhtp about connections on a Unix
# socket; info lines without a message; and the countdown at the end.
TRITON_NOISE = (
    r"^(Usage: tritonserver|(?!.*[Ee]rror)[A-Z][A-Za-z/ ]*:$|\t|  -)",
    r"^\s*$|^[+|].*[+|]$|evhtp\.c.*NODELAY NOT SUPPORTED",
    r"^I\d{4} [\d:.]+ \d+ \S+\] (\"Timeout \d+: Found.*)?$",
)
# lines that are also dropped if SERVE_DEVICE is cpu, because they only say that no GPU is used
NO_GPU_NOISE = (
    r"^Error: Failed to initialize NVML$",
    r"\"(Unable to allocate pinned system memory|CUDA memory pool disabled|"
    r"CudaDriverHelper has not been initialized|DCGM unable to start|Collecting CPU metrics)",
)


def all_processes(
    settings: Settings, environ: Mapping[str, str], listeners: Sequence[socket.socket] = ()
) -> list[Process]:
    """Return the processes in the order in which they are started. nginx inherits the listeners.
    Create the processes' folders and configuration files, and set the limit of open files, which
    they inherit. Raise FileNotFoundError if a program is missing, and SettingsError if too few open
    files are allowed."""
    environment = {
        **environ,
        **settings.environment(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        # keep ONNX Runtime from writing a database under HOME and contacting Microsoft's servers
        "ORT_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
    }
    # only the Flask app needs the secrets
    public = {name: value for name, value in environment.items() if name not in SECRETS}
    command = (sys.executable, "-m", "serving.model_lifecycle")
    manager = Process("manager", command, public, ROOT, answers_at=(settings.manager_socket, "/"))
    return [
        triton(settings, public),
        manager,
        gunicorn(settings, environment),
        nginx(settings, public, listeners),
        *cloudwatch_agent(settings, public),
    ]


def gunicorn(settings: Settings, environ: Mapping[str, str]) -> Process:
    """Describe gunicorn's process, and empty the folder of its metrics, so that they begin at 0. A
    worker accepts no more connections than it has threads, so that no request waits for a busy
    worker while another worker is free. gunicorn itself replaces workers that hang."""
    flags = {
        "chdir": ROOT,
        "worker-class": "serving.front.gunicorn_worker.Worker",
        "workers": settings.all_workers,
        "threads": settings.threads,
        "worker-connections": settings.threads,
        "keep-alive": 0,
        # Do not limit the request line and the headers here: nginx does so, and its errors are
        # JSON, unlike gunicorn's.
        "limit-request-line": 0,
        "limit-request-fields": 32768,
        "timeout": math.ceil(settings.hang_timeout),
        "graceful-timeout": max(1, math.ceil(settings.stop_timeout)),
        "worker-tmp-dir": settings.run_dir,
        "log-level": settings.log_level,
        # Do not trust the headers SCRIPT_NAME and PATH_INFO. By default gunicorn does, because it
        # treats every client of a Unix socket as a proxy.
        "forwarder-headers": "",
        "config": "python:serving.front.gunicorn_config",
    }
    command = [sys.executable, "-m", "gunicorn", "wsgi:app", "--preload", "--no-control-socket"]
    command += ["--permit-unconventional-http-method"]
    command += [f"--bind=unix:{path}" for path in (settings.gunicorn_socket, settings.large_socket)]
    command += [f"--{name}={value}" for name, value in flags.items()]
    metrics = settings.run_dir / "metrics"
    shutil.rmtree(metrics, ignore_errors=True)
    metrics.mkdir()
    own = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OPENCV_FOR_THREADS_NUM": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # A worker keeps freed memory for the next request until it is idle (front/services.py).
        # Otherwise page faults would take two fifths of its time when it decodes images. It uses
        # only one arena, because malloc_trim does not release the ends of other arenas.
        "MALLOC_MMAP_THRESHOLD_": MALLOC_THRESHOLD,
        "MALLOC_TRIM_THRESHOLD_": MALLOC_THRESHOLD,
        "MALLOC_ARENA_MAX": "1",
        "PROMETHEUS_MULTIPROC_DIR": str(metrics),
    }
    return Process("gunicorn", tuple(command), {**environ, **own}, ROOT)


def find_agent(environ: Mapping[str, str]) -> str | None:
    """Return the path of the CloudWatch agent's program, or None if it is not installed. Search the
    PATH and the folder into which AWS's package installs it."""
    path = f"{environ.get('PATH', os.defpath)}:{AGENT_FOLDER}"
    return shutil.which(AGENT, path=path)


def cloudwatch_agent(settings: Settings, environ: Mapping[str, str]) -> list[Process]:
    """Describe the CloudWatch agent's process, and write its configuration. The agent scrapes
    /metrics, and publishes the metrics that cloudwatch.json declares. Return [] if the agent is not
    requested, or not installed (`serve` warns about that).

    RUN_IN_CONTAINER makes the agent read its configuration from CW_CONFIG_CONTENT instead of a file
    under /etc.
    """
    program = find_agent(environ) if settings.cloudwatch else None
    if not program:
        return []
    host, port = ping_address(settings)
    targets = [{"targets": [f"{bracketed(host)}:{port}"]}]
    scrape = {
        "global": {"scrape_interval": "60s", "scrape_timeout": "10s"},
        "scrape_configs": [
            {"job_name": "triton", "metrics_path": "/metrics", "static_configs": targets}
        ],
    }
    scrape_file = settings.run_dir / "prometheus.yaml"
    # JSON is a subset of YAML
    scrape_file.write_text(json.dumps(scrape, indent=2), encoding="utf-8")
    configuration = json.loads(AGENT_TEMPLATE.read_text(encoding="utf-8"))
    # without a region, the agent would ask the machine for it
    if region := environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        configuration["agent"]["region"] = region
    prometheus = configuration["logs"]["metrics_collected"]["prometheus"]
    prometheus |= {
        "log_group_name": settings.cloudwatch_log_group,
        "prometheus_config_path": str(scrape_file),
    }
    prometheus["emf_processor"]["metric_namespace"] = settings.cloudwatch_namespace
    content = json.dumps(configuration, indent=2)
    (settings.run_dir / "cloudwatch.json").write_text(content, encoding="utf-8")
    environ = {**environ, "RUN_IN_CONTAINER": "True", "CW_CONFIG_CONTENT": content}
    return [Process("cloudwatch-agent", (program,), environ, settings.run_dir, optional=True)]


def triton(
    settings: Settings, environ: Mapping[str, str], gpus: Callable[[], int] = gpu_count
) -> Process:
    """Describe tritonserver's process, and create its folders. The names of its files in /dev/shm
    begin with a unique prefix, so that they can be removed if it is killed. Write the prefix to
    `shared_memory_file`, because the Flask app uses it too. `gpus` returns the number of GPUs.
    Raise FileNotFoundError if a program or library is missing."""
    backends = tritonserver.backend_directory()
    settings.triton_folder.mkdir(mode=0o700, exist_ok=True)
    settings.staged_folder.mkdir(exist_ok=True)
    prefix = new_prefix()
    replace_file(settings.shared_memory_file, prefix.encode(), mode=0o600)
    defaults = {"OPENBLAS_THREAD_TIMEOUT": OPENBLAS_SPINNING}
    if "OMP_WAIT_POLICY" not in environ:  # GOMP_SPINCOUNT would override it
        defaults["GOMP_SPINCOUNT"] = OPENMP_SPINNING
    environ = tritonserver.environment(defaults | dict(environ))
    environ = tritonserver.with_stub_wait(environ)
    command = tritonserver.command(triton_flags(settings, backends), backends, prefix)
    command += backend_options(settings, backends)
    if settings.device == "gpu" and settings.model_load_gpu_limit:
        for gpu in range(gpus()):
            command.append(f"--model-load-gpu-limit={gpu}:{settings.model_load_gpu_limit}")
    # the operator's options come last, because tritonserver uses the last value of an option
    command += settings.additional_arguments
    noise: tuple[str, ...] = TRITON_NOISE
    if settings.device == "cpu":
        noise += NO_GPU_NOISE
    sockets = f"{glob.escape(str(settings.triton_folder))}/*.sock*"
    return Process(
        "tritonserver",
        tuple(command),
        environ,
        ROOT,
        noise=noise,
        leftovers=(f"/dev/shm/{prefix}*", sockets),
        leftover_folders=tritonserver.ENVIRONMENTS,
        answers_at=(settings.triton_http, "/v2/health/live"),
    )


def triton_flags(settings: Settings, backends: Path) -> dict[str, object]:
    """Return the options that `serve` sets for tritonserver itself, not for its backends."""
    flags: dict[str, object] = {
        # tritonserver loads all staged models before it listens. After that, the model manager
        # loads and unloads models.
        "model-repository": settings.staged_folder,
        "model-control-mode": "explicit",
        "load-model": "*",
        "backend-directory": backends,
        "allow-metrics": "true",
        # false if model folders may change, so that Triton stays ready while a changed model is
        # tried
        "strict-readiness": str(not settings.policy.copied).lower(),
        # tritonserver continues if a model cannot be loaded; /ping and /models then name the model
        "exit-on-error": "false",
        "exit-timeout-secs": max(1, min(EXIT_SECONDS, math.ceil(settings.stop_timeout))),
        "http-thread-count": settings.thread_count,
        "buffer-manager-thread-count": settings.buffer_manager_thread_count,
        "log-verbose": settings.log_verbose,
        "log-info": settings.log_info,
        "log-warning": settings.log_warning,
        "log-error": str(settings.log_error).lower(),
        "http-address": f"unix:{settings.triton_http}",
        "grpc-address": f"unix:{settings.triton_grpc}".removesuffix(f":{GRPC_PORT}"),
        "grpc-port": GRPC_PORT,
        "metrics-address": f"unix:{settings.triton_metrics}",
    }
    if settings.policy.by_call:
        flags["model-load-thread-count"] = LOADS_AT_ONCE
    if settings.device == "cpu":
        flags["allow-gpu-metrics"] = "false"
    return flags


def backend_options(settings: Settings, backends: Path) -> Iterator[str]:
    """Yield the options that tritonserver passes to its backends."""
    python_backends = tritonserver.python_backends(backends)
    for backend in python_backends:
        yield f"--backend-config={backend},shm-default-byte-size={settings.shm_default_byte_size}"
        yield f"--backend-config={backend},shm-growth-byte-size={settings.shm_growth_byte_size}"
        if settings.policy.by_call:
            yield f"--backend-config={backend},thread-pool-size={PYTHON_THREADS}"
    if (backends / "tensorflow").is_dir() and "tensorflow" not in python_backends:
        yield f"--backend-config=tensorflow,version={settings.tensorflow_version}"
