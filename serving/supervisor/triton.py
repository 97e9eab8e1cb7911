"""tritonserver's process: its command line, its environment, what of its output is noise and what it leaves behind."""

import glob
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from serving.host import tritonserver
from serving.host.files import replace_file
from serving.host.machine import gpu_count
from serving.host.tritonserver import python_backends
from serving.settings.handed_on import HANDED_ON, HandedOn
from serving.settings.table import GRPC_PORT, Settings, TritonSockets
from serving.supervisor.resources import new_prefix
from serving.supervisor.system import Process

HERE = Path(__file__).resolve().parents[2]
LOADS_AT_ONCE = 32
# gunicorn has answered all requests before tritonserver is told to stop. What it waits for then is instances whose
# process has died or hangs, and these never end.
EXIT_SECONDS = 5
THREADS_OF_A_MODEL = 4  # of Triton for a Python model; its own 32 would be 32,000 for 1,000 models
# Threads of NumPy's OpenBLAS, one for each processor but one, spin after its import and after each product of large
# matrices in case of more work: for 2^28 cycles, 0.1 s (its driver/others/blas_server.c). 2^16 are some 25 µs. Those of
# OpenMP, as PyTorch has them, look 300,000 times for the next operator (libgomp's manual, GOMP_SPINCOUNT); where others
# want the processors, that is most of what they do. 10,000 are enough between the operators of a network.
SPINNING = {"OPENBLAS_THREAD_TIMEOUT": "16", "GOMP_SPINCOUNT": "10000"}
ENVIRONMENTS = "/tmp/python_env_??????"  # where each python backend unpacks packages
# Lines that are not logged: tables, empty lines, the countdown, and the library evhtp's about each connection on a Unix
# socket; without a GPU, that none is found.
TRITON_NOISE = (
    r"^\s*$|^[+|].*[+|]$|evhtp\.c.*NODELAY NOT SUPPORTED",
    r"^I\d{4} [\d:.]+ \d+ \S+\] (\"Timeout \d+: Found.*)?$",
)
NO_GPU_NOISE = (
    r"^Error: Failed to initialize NVML$|\"(Unable to allocate pinned system memory|CUDA memory pool disabled|"
    r"CudaDriverHelper has not been initialized|DCGM unable to start|Collecting CPU metrics)",
)


def triton(settings: Settings, environ: Mapping[str, str]) -> Process:
    """Return tritonserver's process. Its shared memory has a name of its own, so what a killed one leaves there can be
    removed."""
    sockets, backends = settings.triton_sockets, tritonserver.backend_directory()
    sockets.folder.mkdir(mode=0o700, exist_ok=True)
    settings.staged_folder.mkdir(exist_ok=True)
    prefix = new_prefix()
    replace_file(settings.shared_memory_file, prefix.encode(), mode=0o600)
    flags = {
        # Whatever is staged when it starts is loaded before it listens; the model manager loads and unloads the rest.
        "model-repository": settings.staged_folder,
        "model-control-mode": "explicit",
        "load-model": "*",
        "backend-directory": backends,
        "allow-metrics": "true",
        # While a model is tried that nobody calls yet, the others are ready.
        "strict-readiness": str(not settings.reloads).lower(),
        # A model that cannot be loaded is named by /ping and /models instead of by a server that is gone.
        "exit-on-error": "false",
        "exit-timeout-secs": max(1, min(EXIT_SECONDS, math.ceil(settings.stop_timeout))),
    } | addresses(sockets)
    environ = tritonserver.with_stub_wait(tritonserver.environment(_spinning(environ) | dict(environ)))
    if settings.multi_model:
        flags |= {"model-load-thread-count": LOADS_AT_ONCE}
    if settings.device == "cpu":
        flags |= {"allow-gpu-metrics": "false"}
    command = [str(tritonserver.binary()), *(f"--{name}={value}" for name, value in flags.items())]
    if tritonserver.only_python_backends(backends):  # what is staged is complete
        command.append("--disable-auto-complete-config")
    for backend in tritonserver.python_backends(backends):
        command.append(f"--backend-config={backend},shm-region-prefix-name={prefix}")
        if settings.multi_model:
            command.append(f"--backend-config={backend},thread-pool-size={THREADS_OF_A_MODEL}")
    command += handed_on(settings, environ, backends)
    command += settings.additional_arguments  # the last option of a name counts
    return Process(
        "tritonserver",
        tuple(command),
        environ,
        HERE,
        noise=TRITON_NOISE + (NO_GPU_NOISE if settings.device == "cpu" else ()),
        leftovers=(f"/dev/shm/{prefix}*", f"{glob.escape(str(sockets.folder))}/*.sock*"),
        leftover_folders=ENVIRONMENTS,
        restart_request=settings.triton_restart_request,
        answers_at=(sockets.http, "/v2/health/live"),
    )


def _spinning(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of SPINNING that the operator left open. OMP_WAIT_POLICY also says how long OpenMP spins."""
    said = {"GOMP_SPINCOUNT"} if "OMP_WAIT_POLICY" in environ else set()
    return {name: value for name, value in SPINNING.items() if name not in environ.keys() | said}


def addresses(sockets: TritonSockets) -> dict[str, object]:
    """Return the options that say where tritonserver listens."""
    return {
        "http-address": f"unix:{sockets.http}",
        "grpc-address": f"unix:{sockets.grpc}".removesuffix(f":{GRPC_PORT}"),
        "grpc-port": GRPC_PORT,
        "metrics-address": f"unix:{sockets.metrics}",
    }


def handed_on(settings: Settings, environ: Mapping[str, str], backends: Path, gpus: int | None = None) -> Iterator[str]:
    """Yield the options that variables of NVIDIA's image stand for. `gpus` is their number; None: the machine's."""
    logs = {"log_info": settings.logs("info"), "log_warning": settings.logs("warning")}
    for row in HANDED_ON:
        value = row.read(environ)
        text = row.format(logs[row.name] if value == "auto" else value)
        for target in _targets(row, settings, backends, gpu_count() if gpus is None else gpus):
            if row.each != "gpu" or value:
                yield f"{row.option.format(target)}{text}"


def _targets(row: HandedOn, settings: Settings, backends: Path, gpus: int) -> Iterable[object]:
    """Return what the option is given for, once each."""
    own_tensorflow = (backends / "tensorflow").is_dir() and "tensorflow" not in python_backends(backends)
    return {
        "server": [""],
        "python backend": python_backends(backends),
        "tensorflow backend": ["tensorflow"] if own_tensorflow else [],
        "gpu": range(gpus) if settings.device == "gpu" else [],
    }[row.each]
