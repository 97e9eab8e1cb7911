"""Tests `serve` as a program: what it refuses, what it prints, and the table of processes that it
makes."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from serving.host.machine import Machine
from serving.pid1.nginx import nginx
from serving.pid1.system import Process
from serving.repository.layout import LayoutError
from serving.settings.setting import SettingsError
from serving.settings.settings import SETTINGS, Settings
from tests.support.harness import PATIENCE, ROOT, free_port

pytestmark = pytest.mark.unit

MACHINE = Machine(cpus=2.0, memory=8 * 1024**3, gpu=False)


def load_serve() -> ModuleType:
    loader = SourceFileLoader("serve_script", str(ROOT / "serve"))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("serve_script", loader)  # type: ignore[arg-type]
    )
    loader.exec_module(module)
    return module


serve = load_serve()


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SERVE_", "SAGEMAKER_"))
    }
    command = [sys.executable, str(ROOT / "serve"), *arguments]
    return subprocess.run(
        command,
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def table(folder: Path, **variables: str) -> dict[str, Process]:
    port = str(free_port())
    environ = {"SERVE_RUN_DIR": str(folder), "SERVE_HOST": "127.0.0.1", "PORT": port, **variables}
    settings = Settings.from_env(environ, MACHINE)
    return {
        process.name: process for process in serve.all_processes(settings, os.environ | variables)
    }


def test_list_every_variable_in_the_help() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert not [name for row in SETTINGS for name in row.variables if name not in done.stdout]


def test_write_defaults_in_the_help_as_in_a_variable() -> None:
    text = run("--help").stdout
    for name, default in [("SERVE_MODEL_REPOSITORY", "auto"), ("SAGEMAKER_BATCH", "false")]:
        assert re.search(rf"^  {name}\n.*\(default: {default}\)$", text, re.MULTILINE)


@pytest.mark.parametrize("arguments", [("train",), ("--port", "80")])
def test_refuse_unknown_arguments(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert " ".join(arguments) in done.stderr


@pytest.mark.parametrize("arguments", [(), ("serve",)])
def test_report_all_wrong_settings_together(arguments: tuple[str, ...]) -> None:
    done = run(*arguments, PORT="no", SERVE_WORKERS="-1", SERVE_DEVICE="tpu")
    assert done.returncode == 2
    messages = [json.loads(line)["message"] for line in done.stderr.splitlines()]
    assert [message.partition("=")[0] for message in messages] == [
        "PORT",
        "SERVE_DEVICE",
        "SERVE_WORKERS",
    ]


def test_report_a_port_in_use_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run(PORT=str(taken.getsockname()[1]), SERVE_HOST="127.0.0.1")
    assert done.returncode == 2
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


def test_report_the_last_line_of_a_failed_survey(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "google").mkdir()
    (tmp_path / "google/__init__.py").write_text("raise ImportError('no protobuf')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LayoutError, match=r"read: ImportError: no protobuf$"):
        serve.surveyed(Settings())


def test_refuse_a_run_folder_too_deep_for_a_socket() -> None:
    longest = 107 - len("/triton/grpc.sock:8001")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/{'x' * (longest - len(folder))}"
        assert len(path) == longest + 1
        done = run(SERVE_RUN_DIR=path)
    assert (done.returncode, "SERVE_RUN_DIR" in done.stderr) == (2, True)


def test_refuse_a_run_folder_in_use_or_not_made_by_serve(tmp_path: Path) -> None:
    (tmp_path / "models/net").mkdir(parents=True)
    done = run(SERVE_RUN_DIR=str(tmp_path), SERVE_HOST="127.0.0.1", PORT=str(free_port()))
    assert (done.returncode, "did not make" in done.stderr) == (2, True) and (
        tmp_path / "models/net"
    ).is_dir()
    settings = replace(Settings(), run_dir=tmp_path / "run")
    with (
        serve.run_folder(settings),
        pytest.raises(SettingsError, match="another serve"),
        serve.run_folder(settings),
    ):
        pass
    (tmp_path / "serve.lock").touch()  # a start that was killed leaves this file
    with serve.run_folder(replace(settings, run_dir=tmp_path)):
        assert (tmp_path / "models/net").is_dir()
    with (
        pytest.raises(SettingsError, match="space"),
        serve.run_folder(replace(settings, run_dir=tmp_path / "a b")),
    ):
        pass


def test_name_the_package_if_nginx_is_missing(tmp_path: Path) -> None:
    settings = replace(Settings(), run_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match="nginx-light"):
        nginx(settings, {"PATH": "/nowhere"}, folders="/nowhere")


def test_keep_only_a_run_folder_the_user_named_and_make_it_private(tmp_path: Path) -> None:
    with serve.run_folder(Settings()) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    assert not folder.exists()
    with serve.run_folder(replace(Settings(), run_dir=tmp_path / "run")) as folder:
        (folder / "file").touch()
    assert (tmp_path / "run" / "file").exists()


def test_start_triton_first_and_stop_nginx_first(tmp_path: Path) -> None:
    processes = table(tmp_path)
    assert list(processes) == ["tritonserver", "manager", "gunicorn", "nginx"]
    assert processes["nginx"].stop_signal == signal.SIGQUIT


def test_put_triton_s_sockets_into_a_private_folder(tmp_path: Path) -> None:
    command = table(tmp_path)["tritonserver"].command
    addresses = {
        word.partition("=")[2]
        for word in command
        if re.match("--(http|grpc|metrics)-address=", word)
    }
    assert {Path(address).parent for address in addresses} == {
        Path(f"unix:{tmp_path}/triton")
    } and len(addresses) == 3
    assert (tmp_path / "triton").stat().st_mode & 0o777 == 0o700


def test_serve_the_staged_repository_in_every_mode(tmp_path: Path) -> None:
    for mode in ({}, {"SERVE_RELOAD": "true"}, {"SAGEMAKER_MULTI_MODEL": "true"}):
        command = table(tmp_path, **mode)["tritonserver"].command
        assert {
            f"--model-repository={tmp_path}/models",
            "--model-control-mode=explicit",
            "--load-model=*",
        } < {*command}


def test_prefix_the_names_of_triton_s_shared_memory(tmp_path: Path) -> None:
    first, second = table(tmp_path)["tritonserver"], table(tmp_path)["tritonserver"]
    assert first.leftovers[0] != second.leftovers[0]
    name = first.leftovers[0].removeprefix("/dev/shm/").removesuffix("*")
    assert f"--backend-config=python,shm-region-prefix-name={name}" in first.command
    assert (file := tmp_path / "triton/shared-memory").stat().st_mode & 0o777 == 0o600
    assert second.leftovers[0] == f"/dev/shm/{file.read_text()}*"


def test_let_gunicorn_accept_no_more_than_it_has_threads(tmp_path: Path) -> None:
    command = table(tmp_path, SERVE_WORKERS="2", SERVE_MAX_CONCURRENCY="12")["gunicorn"].command
    assert {"--threads=7", "--worker-connections=7", "--keep-alive=0", "--no-control-socket"} < set(
        command
    )
    assert "--workers=4" in command
    assert f"--bind=unix:{tmp_path}/gunicorn.sock" in command
    assert f"--bind=unix:{tmp_path}/gunicorn-large.sock" in command


def test_pass_the_settings_of_serve_to_every_process(tmp_path: Path) -> None:
    processes = table(tmp_path, SERVE_WORKERS="3", MODEL_SERVER_TIMEOUT="7")
    read = {Settings.from_env(process.environment) for process in processes.values()}
    assert len(read) == 1
    settings = read.pop()
    assert (settings.workers, settings.request_timeout, settings.run_dir) == (3, 7.0, tmp_path)


def test_disable_telemetry_and_writes_beside_the_program(tmp_path: Path) -> None:
    expected = {"PYTHONDONTWRITEBYTECODE": "1", "ORT_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1"}
    for process in table(tmp_path).values():
        assert expected.items() <= process.environment.items()


@pytest.mark.parametrize(
    ("host", "asked"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("127.0.0.1", "127.0.0.1"), ("10.0.0.1", "10.0.0.1")],
)
def test_check_ping_on_the_port_of_nginx(host: str, asked: str) -> None:
    assert serve.ping_address(replace(Settings(), host=host, port=1)) == (asked, 1)


def test_run_serve_as_a_program_with_any_python_on_the_path(tmp_path: Path) -> None:
    variables = {
        "PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin",
        "SERVE_MODEL_REPOSITORY": str(tmp_path),
        "SERVE_MODLES": "on-demand",
    }
    (tmp_path / "model.tar.gz").touch()
    done = subprocess.run(
        [ROOT / "serve", "--check"], env=variables, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert "there is no model in" in done.stderr  # `serve` runs with its own Python
    assert "archives are served only with SERVE_MODELS=on-demand" in done.stderr
    assert "SERVE_MODLES is not a setting; did you mean SERVE_MODELS?" in done.stderr


def test_keep_threads_of_numpy_and_pytorch_in_models_from_spinning(tmp_path: Path) -> None:
    environment = table(tmp_path)["tritonserver"].environment
    assert (environment["OPENBLAS_THREAD_TIMEOUT"], environment["GOMP_SPINCOUNT"]) == (
        "16",
        "10000",
    )


def test_check_the_health_of_the_manager(tmp_path: Path) -> None:
    manager = table(tmp_path)["manager"]
    assert not manager.optional and manager.answers_at == (tmp_path / "manager.sock", "/")
