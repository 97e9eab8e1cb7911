"""The table of processes that `serve` watches: their command lines, environments and what of their output is noise."""

import glob
import math
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serving.host import tritonserver
from serving.host.files import replace_file
from serving.host.network import bracketed, reached
from serving.repository.facts import Facts
from serving.repository.layout import LayoutError, arranged, config_name
from serving.repository.links import arrange
from serving.settings.table import SECRETS, Settings
from serving.supervisor import cloudwatch, triton_options
from serving.supervisor.nginx import nginx_configuration
from serving.supervisor.resources import new_prefix
from serving.supervisor.system import Process

HERE = Path(__file__).resolve().parents[2]
LOADS_AT_ONCE = 32
SAGEMAKER_PORT = 1  # of Triton's endpoint, which is on a socket instead; no program of a model listens there
# gunicorn has answered all requests before tritonserver is told to stop. What it waits for then is instances whose
# process has died or hangs, and these never end.
EXIT_SECONDS = 5
THREADS_OF_A_MODEL = 4  # of Triton for a Python model; its own 32 would be 32,000 for 1,000 models
# Threads of NumPy's OpenBLAS, one for each processor but one, spin after its import and after each product of large
# matrices in case of more work: for 2^28 cycles, 0.1 s (its driver/others/blas_server.c). 2^16 are some 25 µs. Those of
# OpenMP, as PyTorch has them, look 300,000 times for the next operator (libgomp's manual, GOMP_SPINCOUNT); where others
# want the processors, that is most of what they do. 10,000 are enough between the operators of a network.
SPINNING = {"OPENBLAS_THREAD_TIMEOUT": "16", "GOMP_SPINCOUNT": "10000"}
ENVIRONMENTS = "/tmp/python_env_??????"  # a folder of each python backend, which takes no other place than /tmp
MALLOC_THRESHOLD = f"{32 * 2**20}"  # bytes, the most that malloc allows: below it, it keeps what is freed

# Lines that are not logged: tritonserver's tables, empty lines and countdown; without a GPU that it finds none; nginx's
# line for each /ping of ours while gunicorn does not listen yet. The supervisor itself logs both when they last.
TRITON_NOISE = (r"^\s*$|^[+|].*[+|]$|^I\d{4} [\d:.]+ \d+ \S+\] (\"Timeout \d+: Found.*)?$",)
NO_GPU_NOISE = (
    r"^Error: Failed to initialize NVML$|\"(Unable to allocate pinned system memory|CUDA memory pool disabled|"
    r"CudaDriverHelper has not been initialized|DCGM unable to start|Collecting CPU metrics)",
)
NGINX_NOISE = (r'connect\(\) to unix:\S+ failed .* request: "GET /ping HTTP',)


def table(
    settings: Settings, facts: Facts, environ: Mapping[str, str], listeners: Sequence[socket.socket] = ()
) -> list[Process]:
    """The processes in the order of their start; FileNotFoundError names a program that is missing. nginx inherits the
    listeners."""
    settings = settings if settings.reloads else with_configs(settings, facts.configs)
    python = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    # Without the first ONNX Runtime writes a database below HOME and calls its maker's servers.
    quiet = {"ORT_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1"}
    front = {**environ, **settings.environment(), **python, **quiet}
    common = {name: value for name, value in front.items() if name not in SECRETS}  # only the front needs them
    needed = [triton(settings, facts.complete, common), gunicorn(settings, front), nginx(settings, common, listeners)]
    return needed + cloudwatch_agent(settings, common) + reloader(settings, facts, common)


def with_configs(settings: Settings, configs: Mapping[str, str]) -> Settings:
    """The same, reading the repositories of these models' folders through folders of links with these config.pbtxt."""
    shutil.rmtree(arranged(settings.run_dir, 0).parent, ignore_errors=True)
    folders = []
    for number, repository in enumerate(settings.model_repositories):
        if any(Path(folder).parent == repository for folder in configs):
            arrange(repository, arranged(settings.run_dir, number), configs)
            repository = arranged(settings.run_dir, number)
        folders.append(repository)
    return replace(settings, model_repositories=tuple(folders))


def triton(settings: Settings, complete: bool, environ: Mapping[str, str]) -> Process:
    """Its shared memory has a name of its own, so that what a killed one leaves there can be removed."""
    sockets, backends = settings.triton_sockets, tritonserver.backend_directory()
    sockets.folder.mkdir(mode=0o700, exist_ok=True)
    prefix = new_prefix()
    replace_file(settings.shared_memory_file, prefix.encode(), mode=0o600)
    flags = {
        "backend-directory": backends,
        "allow-metrics": "true",
        # While a model is tried that nobody calls yet, the others are ready.
        "strict-readiness": str(not settings.reloads).lower(),
        # A model that cannot be loaded is named by /ping and /models instead of by a server that is gone.
        "exit-on-error": "false",
        "exit-timeout-secs": max(1, min(EXIT_SECONDS, math.ceil(settings.stop_timeout))),
    } | triton_options.addresses(sockets)
    environ = tritonserver.with_stub_wait(tritonserver.environment(_spinning(environ) | dict(environ)))
    if settings.multi_model:
        flags |= multi_model(settings)
        environ = tritonserver.on_socket(environ, SAGEMAKER_PORT, sockets.sagemaker)
    if settings.device == "cpu":
        flags |= {"model-config-name": config_name(settings.device), "allow-gpu-metrics": "false"}
    command = [str(tritonserver.binary()), *(f"--{name}={value}" for name, value in flags.items())]
    if complete and (not settings.reloads or tritonserver.only_python_backends(backends)):
        command.append("--disable-auto-complete-config")
    for backend in tritonserver.python_backends(backends):
        command.append(f"--backend-config={backend},shm-region-prefix-name={prefix}")
        if settings.multi_model:
            command.append(f"--backend-config={backend},thread-pool-size={THREADS_OF_A_MODEL}")
    command += triton_options.models(settings)
    command += triton_options.handed_on(settings, environ, backends)
    command += settings.additional_arguments  # the last option of a name counts
    return Process(
        "tritonserver",
        tuple(command),
        environ,
        HERE,
        noise=TRITON_NOISE + (NO_GPU_NOISE if settings.device == "cpu" else ()),
        leftovers=(f"/dev/shm/{prefix}*", f"{glob.escape(str(sockets.folder))}/*.sock*"),
        empty_leftovers=ENVIRONMENTS,
        restart_request=settings.triton_restart_request,
        answers_at=(sockets.http, "/v2/health/live"),
    )


def _spinning(environ: Mapping[str, str]) -> dict[str, str]:
    """What the user's environment leaves open; whoever says how OpenMP waits has said how long, too."""
    said = {"GOMP_SPINCOUNT"} if "OMP_WAIT_POLICY" in environ else set()
    return {name: value for name, value in SPINNING.items() if name not in environ.keys() | said}


def multi_model(settings: Settings) -> dict[str, object]:
    """Flags of a Triton without models, whose SageMaker endpoint loads archives, each in a thread. Removes what was
    recorded of archives that an earlier tritonserver loaded."""
    folder = settings.models_folder
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "empty").mkdir(parents=True)
    return {
        "model-repository": folder / "empty",
        "model-control-mode": "explicit",
        "model-load-thread-count": LOADS_AT_ONCE,
        "allow-sagemaker": "true",
        "sagemaker-port": SAGEMAKER_PORT,
        "sagemaker-thread-count": LOADS_AT_ONCE,
    }


def gunicorn(settings: Settings, environ: Mapping[str, str]) -> Process:
    """A worker accepts no more connections than it has threads, so that no request waits behind a busy one
    while another worker is free. `serve` finds workers that hang (front/beat.py), gunicorn's own --timeout does not."""
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
        "timeout": 0,
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
    return Process("gunicorn", tuple(command), environ, HERE, beats=emptied(settings.gunicorn_beats), writes_log=True)


def emptied(folder: Path) -> Path:
    """The folder, new; what is in it counts from our start."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def nginx(settings: Settings, environ: Mapping[str, str], listeners: Sequence[socket.socket] = ()) -> Process:
    """Renders nginx.conf into the run folder. The variable NGINX is how nginx hands its listeners to a new binary."""
    binary = shutil.which("nginx", path=f"{environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    if not binary:
        raise FileNotFoundError("nginx is not installed: install a package of it, such as Debian's nginx-light")
    configuration = settings.run_dir / "nginx.conf"
    text = nginx_configuration(settings)
    configuration.write_text(text, encoding="utf-8")
    command = (binary, "-c", str(configuration), "-p", str(settings.run_dir), "-e", "stderr")
    # Else nginx spends half of its time with a tensor of 600 kB on giving memory back and asking for it again.
    heap = {"MALLOC_MMAP_THRESHOLD_": MALLOC_THRESHOLD, "MALLOC_TRIM_THRESHOLD_": f"{64 * 2**20}"}
    inherited = {"NGINX": "".join(f"{listener.fileno()};" for listener in listeners)} if listeners else {}
    return Process(
        "nginx",
        command,
        {**environ, **heap, **inherited},
        settings.run_dir,
        stop_signal=signal.SIGQUIT,
        noise=NGINX_NOISE,
        listeners=tuple(listeners),
    )


def cloudwatch_agent(settings: Settings, environ: Mapping[str, str]) -> list[Process]:
    """No process where it is not asked for, or not installed (`serve` warns of that)."""
    program = cloudwatch.find_agent(environ) if settings.cloudwatch else None
    if not program:
        return []
    host, port = ping_address(settings)
    own = cloudwatch.agent_environment(settings, f"{bracketed(host)}:{port}", environ)
    return [Process("cloudwatch-agent", (program,), {**environ, **own}, settings.run_dir, optional=True)]


def reloader(settings: Settings, facts: Facts, environ: Mapping[str, str]) -> list[Process]:
    """What has changed model folders served, where that is asked for; copies the models as they lie there now."""
    if not settings.reloads:
        return []
    from serving.repository.live import LiveModels  # which takes time of the start

    places = (repository / name for name in facts.models for repository in settings.model_repositories)
    parts = {name: model.parts for name, model in facts.models.items()}
    try:
        LiveModels(settings.live_folder).begin([path for path in places if path.is_dir()], facts.configs, parts)
    except OSError as err:
        what = f"the model folders cannot be copied into the run folder: {err}"
        raise LayoutError([f"{what}; name another one in SERVE_RUN_DIR, or set SERVE_RELOAD=false"]) from err
    command = (sys.executable, "-m", "serving.reload")
    return [Process("reload", command, environ, HERE, optional=True, passed_on=(signal.SIGHUP,))]


def ping_address(settings: Settings) -> tuple[str, int]:
    return reached(settings.host), settings.port
