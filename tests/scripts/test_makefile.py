"""What `make` runs, mostly without running it."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.harness import ROOT, Server, make_scale


def recipe(*arguments: str, **variables: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SERVE_", "MAKE"))}
    done = subprocess.run(
        ["make", "--dry-run", *arguments], cwd=ROOT, env=environ | variables, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "variables", "host"),
    [((), {}, "127.0.0.1"), (("HOST=0.0.0.0",), {}, "0.0.0.0"), ((), {"SERVE_HOST": "::1"}, "::1")],
)
def test_it_serves_this_machine_alone_unless_told(
    arguments: tuple[str, ...], variables: dict[str, str], host: str
) -> None:
    assert f" SERVE_HOST={host} " in recipe("run", *arguments, **variables)


class Made(Server):
    """`make run` of what is set up."""

    prefix = ("sh", "-c", f"exec make -C {ROOT} -o setup -o models run")


def test_what_it_serves_stops_with_it(tmp_path: Path) -> None:
    make_scale(tmp_path / "repository")
    made = Made(tmp_path, tmp_path / "repository").wait_ready()
    made.stop()
    made.wait_gone()
    assert made.entries("serve")[-1]["message"] == "stopped"


def test_whatever_is_installed_has_a_hash() -> None:
    installs = re.findall(r"pip install .*|/pip .*-r .*|scripts/install .*", recipe("--always-make", "dev"))
    assert installs
    for install in installs:
        assert "--require-hashes" in install or install.startswith("scripts/install ")
        for file in re.findall(r"requirements/\S+", install):
            lines = (ROOT / file).read_text().replace("\\\n", "").splitlines()
            assert all(" --hash=sha256:" in line for line in lines if line and not line.lstrip().startswith("#")), file


def test_pip_installs_what_uv_cannot(tmp_path: Path) -> None:
    """uv fails, as it does behind a mirror that pip's configuration alone names; both are stand-ins."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name, last in (("uv", "exit 2"), ("pip", "exit 0")):
        file = tmp_path / ".venv/bin" / name
        file.write_text(f'#!/bin/sh\necho {name} "$@" >> calls\n{last}\n')
        file.chmod(0o755)
    install = [str(ROOT / "scripts/install"), "--no-deps", "requirements/a.lock", "requirements/b.lock"]
    subprocess.run(install, cwd=tmp_path, check=True)
    first, second = (tmp_path / "calls").read_text().splitlines()
    for call in (first, second):
        assert "--require-hashes" in call
        assert call.endswith("--no-deps -r requirements/a.lock -r requirements/b.lock")
    assert (first.split()[0], second.split()[0]) == ("uv", "pip")
