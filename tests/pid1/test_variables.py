"""Tests that every variable of NVIDIA's image reaches tritonserver, that ports are in the required
range, and that mistakes stop the start."""

import shlex
from pathlib import Path

import pytest

from serving.host.machine import gpu_count
from serving.pid1.processes import backend_options, triton
from serving.pid1.resources import listening_sockets
from serving.settings.explain import config_text, warnings_of_unknown_variables
from serving.settings.setting import SettingsError
from serving.settings.settings import SETTINGS, Settings
from tests.pid1.test_serve import MACHINE, run, table
from tests.support.harness import free_port

pytestmark = pytest.mark.unit

NATIVE = "SAGEMAKER_TRITON_"
BACKENDS = ("onnxruntime", "python")  # the backends of this machine
# the options that a variable adds to the command line: {variable: (value, options)}
RENDERED: dict[str, tuple[str, tuple[str, ...]]] = {
    "THREAD_COUNT": ("3", ("--http-thread-count=3",)),
    "BUFFER_MANAGER_THREAD_COUNT": ("2", ("--buffer-manager-thread-count=2",)),
    "LOG_VERBOSE": ("true", ("--log-verbose=1",)),
    "LOG_INFO": ("false", ("--log-info=false",)),
    "LOG_WARNING": ("0", ("--log-warning=false",)),
    "LOG_ERROR": ("false", ("--log-error=false",)),
    "SHM_DEFAULT_BYTE_SIZE": (
        "16777216",
        tuple(f"--backend-config={b},shm-default-byte-size=16777216" for b in BACKENDS),
    ),
    "SHM_GROWTH_BYTE_SIZE": (
        "4194304",
        tuple(f"--backend-config={b},shm-growth-byte-size=4194304" for b in BACKENDS),
    ),
    "ADDITIONAL_ARGS": (
        "--model-load-thread-count=2 --trace-config 'level=OFF' ",
        ("--model-load-thread-count=2", "--trace-config", "level=OFF"),
    ),
}


def command(folder: Path, **variables: str) -> tuple[str, ...]:
    return tuple(table(folder, **variables)["tritonserver"].command)


@pytest.mark.parametrize("name", RENDERED)
def test_pass_each_variable_to_the_command_line(tmp_path: Path, name: str) -> None:
    value, options = RENDERED[name]
    assert set(options) <= set(command(tmp_path, **{NATIVE + name: value}))
    assert not set(options) <= set(command(tmp_path))


def test_give_triton_our_log_level_by_default(tmp_path: Path) -> None:
    quiet = command(tmp_path, SERVE_LOG_LEVEL="error", SAGEMAKER_TRITON_LOG_WARNING="true")
    assert {"--log-verbose=0", "--log-info=false", "--log-warning=true", "--log-error=true"} <= set(
        quiet
    )
    assert {"--log-info=true", "--log-warning=true"} <= set(command(tmp_path))


def test_limit_the_memory_of_each_gpu(tmp_path: Path) -> None:
    def limits(device: str, **variables: str) -> list[str]:
        environ = {"SERVE_RUN_DIR": str(tmp_path), "SERVE_DEVICE": device, **variables}
        process = triton(Settings.from_env(environ, MACHINE), environ, gpus=lambda: 2)
        return [option for option in process.command if "gpu-limit" in option]

    limit = {f"{NATIVE}MODEL_LOAD_GPU_LIMIT": "0.75"}
    assert limits("gpu", **limit) == [
        "--model-load-gpu-limit=0:0.75",
        "--model-load-gpu-limit=1:0.75",
    ]
    assert limits("gpu") == limits("cpu", **limit) == []


def test_count_gpus_by_their_devices(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia3", "nvidia12", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert gpu_count(tmp_path) == 2


def test_set_tensorflow_s_version_only_if_its_backend_exists(tmp_path: Path) -> None:
    def options() -> set[str]:
        return set(backend_options(Settings(tensorflow_version=1), tmp_path))

    option = "--backend-config=tensorflow,version=1"
    assert option not in options()
    (tmp_path / "tensorflow").mkdir()
    assert option in options()
    (tmp_path / "tensorflow/model.py").touch()
    assert option not in options()


def test_put_the_user_s_own_options_last(tmp_path: Path) -> None:
    assert (
        command(tmp_path, SAGEMAKER_TRITON_ADDITIONAL_ARGS="--exit-on-error=true")[-1]
        == "--exit-on-error=true"
    )


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({f"{NATIVE}ALLOW_GRPC": "true"}, (f"{NATIVE}GRPC_PORT=8001", "SAGEMAKER_SAFE_PORT_RANGE")),
        (
            {f"{NATIVE}ALLOW_METRICS": "true"},
            (f"{NATIVE}METRICS_PORT=8002", "SAGEMAKER_SAFE_PORT_RANGE"),
        ),
        (
            {"PORT": "23001", f"{NATIVE}ALLOW_GRPC": "1", f"{NATIVE}GRPC_PORT": "23001"},
            ("SAGEMAKER_BIND_TO_PORT", f"{NATIVE}GRPC_PORT", "23001"),
        ),
        ({f"{NATIVE}ADDITIONAL_ARGS": "--http-port 1"}, ("--http-port",)),
        ({f"{NATIVE}ADDITIONAL_ARGS": "--load-model=a"}, ("--load-model", "SERVE_LOAD_MODELS")),
    ],
)
def test_name_values_that_contradict_each_other(
    environ: dict[str, str], names: tuple[str, ...]
) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env(environ | {"SAGEMAKER_SAFE_PORT_RANGE": "23000-23999"}, MACHINE)
    (mistake,) = caught.value.mistakes
    assert all(name in mistake for name in names)


def test_suggest_the_nearest_name_for_an_unknown_variable() -> None:
    lines = warnings_of_unknown_variables(
        ["SAGEMAKER_TRITON_THREADCOUNT", "SERVE_WORKER", "SAGEMAKER_REGION", "SERVER", "PORT"]
    )
    assert [(line.split()[0], line.split()[-1]) for line in lines] == [
        ("SAGEMAKER_TRITON_THREADCOUNT", "SAGEMAKER_TRITON_THREAD_COUNT?"),
        ("SERVE_WORKER", "SERVE_WORKERS?"),
    ]
    (far,) = warnings_of_unknown_variables(["SERVE_QZX"])
    assert far.startswith("SERVE_QZX ") and "?" not in far
    assert warnings_of_unknown_variables(name for row in SETTINGS for name in row.variables) == []


def test_print_each_value_and_its_source_with_print_config() -> None:
    environ = {
        "MODEL_SERVER_TIMEOUT": "7",
        "SERVE_KSERVE": "auto",
        "SERVE_LOAD_MODELS": "a b",
        f"{NATIVE}THREAD_COUNT": "3",
        "SERVE_MANAGEMENT_SECRET": "X-Key=hidden",
    }
    lines = config_text(Settings.from_env(environ, MACHINE), environ).splitlines()
    assert len(lines) == len(SETTINGS)
    assert "SERVE_REQUEST_TIMEOUT=7  # variable MODEL_SERVER_TIMEOUT" in lines
    assert "SERVE_KSERVE=false  # derived from SERVE_KSERVE=auto" in lines
    assert "SAGEMAKER_TRITON_THREAD_COUNT=3  # variable SAGEMAKER_TRITON_THREAD_COUNT" in lines
    assert "SERVE_DEVICE=cpu  # derived from the default auto" in lines
    assert "SERVE_STOP_TIMEOUT=25  # default" in lines
    assert "SERVE_MANAGEMENT_SECRET='********'  # variable SERVE_MANAGEMENT_SECRET" in lines
    assert "hidden" not in "".join(lines)
    again = dict(part.split("=", 1) for line in lines for part in shlex.split(line, comments=True))
    assert again["SERVE_LOAD_MODELS"] == "a b"


def test_start_nothing_with_print_config() -> None:
    done = run("--print-config", SERVE_MODEL_REPOSITORY="/absent", PORT="8081")
    assert (done.returncode, done.stderr) == (0, "")
    assert "SAGEMAKER_BIND_TO_PORT=8081 " in done.stdout


def test_give_each_connection_to_one_worker_of_nginx() -> None:
    with (
        listening_sockets(Settings(host="127.0.0.1", port=free_port())) as (listener,),
        pytest.raises(BlockingIOError),
    ):
        listener.accept()
