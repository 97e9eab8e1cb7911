"""Tests which commands `make` runs, mostly without running them."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.harness import ROOT, Server, make_scale

pytestmark = pytest.mark.stack

# the lock files whose packages `make dev` installs
INSTALLED = ("dev.lock", "torch.txt", "openapi.lock", "callers.lock", "sdks.lock", "sdk3.lock")


def recipe(*arguments: str, **variables: str) -> str:
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("SERVE_", "MAKE"))
    }
    done = subprocess.run(
        ["make", "--dry-run", *arguments],
        cwd=ROOT,
        env=environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "variables", "host"),
    [((), {}, "127.0.0.1"), (("HOST=0.0.0.0",), {}, "0.0.0.0"), ((), {"SERVE_HOST": "::1"}, "::1")],
)
def test_serve_only_this_machine_by_default(
    arguments: tuple[str, ...], variables: dict[str, str], host: str
) -> None:
    assert f" SERVE_HOST={host} " in recipe("run", *arguments, **variables)


class Made(Server):
    prefix = ("sh", "-c", f"exec make -C {ROOT} -o setup -o models run")


def test_stop_the_server_with_make(tmp_path: Path) -> None:
    make_scale(tmp_path / "repository")
    server = Made(tmp_path, tmp_path / "repository").wait_ready()
    server.stop()
    server.wait_gone()
    assert server.entries("serve")[-1]["message"] == "stopped"


@pytest.mark.parametrize("target", ["setup", "dev", "models"])
def test_set_up_tritonserver_before_a_target_builds_or_serves(target: str) -> None:
    assert "-o .venv/triton/stub_wait.so" in recipe("--always-make", target)


@pytest.mark.parametrize("file", INSTALLED)
def test_install_again_after_a_change_of_a_lock_file(file: str) -> None:
    assert re.search(f"install .*requirements/{file}", recipe("-W", f"requirements/{file}", "dev"))


def locked(name: str) -> dict[str, str]:
    """Return the packages of a file in requirements/, each with its version and hashes."""
    lines = (ROOT / "requirements" / name).read_text().replace("\\\n", "").splitlines()
    pins = [line.partition("==") for line in lines if line and not line.lstrip().startswith("#")]
    return {package: pin for package, _, pin in pins}


def test_pin_a_hash_for_every_installed_package() -> None:
    installs = re.findall(r"pip install .*|scripts/install .*", recipe("--always-make", "dev"))
    files = [file for install in installs for file in re.findall(r"requirements/(\S+)", install)]
    wanted = ["build.lock", *INSTALLED]
    assert sorted(files) == sorted(wanted)
    for install in installs:
        assert "--require-hashes" in install or install.startswith("scripts/install ")
    for file in files:
        assert all(" --hash=sha256:" in pin for pin in locked(file).values()), file


def test_repeat_the_pins_of_smaller_lock_files_without_torch() -> None:
    serving, build, dev = (locked(f"{name}.lock").items() for name in ("serving", "build", "dev"))
    assert serving < build < dev
    names = [name for name, _ in dev] + [*locked("callers.lock")]
    assert not [name for name in names if name == "torch" or name.startswith("nvidia-cu")]


def test_leave_onnx_runtime_out_of_the_gpu_lock_file() -> None:
    serving, gpu = locked("serving.lock"), locked("gpu.lock")
    text = (ROOT / "requirements/serving.lock").read_text()
    # after a package's version, uv writes the file with that version and the packages that require
    # it
    block = (
        r"^(\S+)==.*\n(?:    --hash=.*\n)+    # via\n    #   -c .*\n    #   onnxruntime\n(?!    #)"
    )
    only = re.findall(block, text, re.MULTILINE)
    assert only
    assert gpu.items() < serving.items()
    assert serving.keys() - gpu.keys() == {"onnxruntime", *only}


def install(folder: Path, **commands: str) -> list[str]:
    """Install a lock file into a folder's .venv with stand-ins for its commands. Return their
    calls."""
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / "requirements").symlink_to(ROOT / "requirements")
    for name, last in commands.items():
        file = folder / ".venv/bin" / name
        file.write_text(f'#!/bin/sh\necho {name} "$@" >> calls\n{last}\n')
        file.chmod(0o755)
    subprocess.run([ROOT / "scripts/install", "requirements/dev.lock"], cwd=folder, check=True)
    return (folder / "calls").read_text().splitlines()


def test_install_with_pip_if_uv_cannot(tmp_path: Path) -> None:
    calls = install(tmp_path, uv="exit 2", pip="exit 0")
    assert [call.split()[0] for call in calls] == ["uv", "pip"]
    for call in calls:
        assert call.endswith("--no-deps --require-hashes -r requirements/dev.lock")


def test_install_uv_first_with_its_hash(tmp_path: Path) -> None:
    script = (
        "cp .venv/uv.txt installed; printf '#!/bin/sh\\necho uv >> calls' > .venv/bin/uv; "
        "chmod +x .venv/bin/uv"
    )
    calls = install(tmp_path, pip=script)
    assert [call.split()[0] for call in calls] == ["pip", "uv"]
    assert calls[0].endswith("--require-hashes -r .venv/uv.txt")
    pins = re.findall(r"^(\S+)==", (tmp_path / "installed").read_text(), re.MULTILINE)
    assert pins == ["uv"]
