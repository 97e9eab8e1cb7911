"""Tests a release in a separate repository, and what scripts/image/build.py asks an engine (a
stand-in)."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from serving import VERSION
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

CHANGES = (
    "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A page.\n\n## [0.0.1] - 2026-01-01\n\n- "
    "All.\n"
)
WHO = ("-c", "user.name=me", "-c", "user.email=me@example.com")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *WHO, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def release(folder: Path, version: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "scripts/release.py"), version]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving/__init__.py").write_text(
        '"""Serves."""\n\nVERSION = "0.1.0"  # of everything\n'
    )
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "config", "user.name", "me")
    git(tmp_path, "config", "user.email", "me@example.com")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Begin")
    return tmp_path


def test_write_the_version_to_the_code_the_changelog_and_a_tag(clone: Path) -> None:
    assert release(clone, "0.2.0").returncode == 0
    assert 'VERSION = "0.2.0"  # of everything' in (clone / "serving/__init__.py").read_text()
    changes = (clone / "CHANGELOG.md").read_text()
    assert re.search(
        r"## \[Unreleased\]\n\n## \[0\.2\.0\] - 20\d\d-\d\d-\d\d\n\n### Added\n\n- A page\.",
        changes,
    )
    assert git(clone, "describe").strip() == "v0.2.0"
    assert git(clone, "status", "--porcelain") == ""


def empty_the_changelog(clone: Path) -> None:
    (clone / "CHANGELOG.md").write_text(CHANGES.replace("### Added\n\n- A page.\n\n", ""))
    git(clone, "commit", "--quiet", "--all", "--message", "Empty the changelog")


@pytest.mark.parametrize(
    ("version", "spoil", "named"),
    [
        ("1.2", None, "'1.2'"),
        ("", None, "''"),
        ("0.0.9", None, "0.1.0"),
        ("0.2.0", lambda clone: (clone / "more").touch(), "committed"),
        ("0.2.0", lambda clone: git(clone, "tag", "v0.2.0"), "v0.2.0"),
        ("0.3.0", empty_the_changelog, "[Unreleased]"),
    ],
)
def test_change_nothing_if_a_release_is_refused(
    version: str, spoil: Callable[[Path], object] | None, named: str, clone: Path
) -> None:
    if spoil:
        spoil(clone)
    before = git(clone, "status", "--porcelain"), git(clone, "log", "--format=%H %D")
    done = release(clone, version)
    assert (done.returncode, named in done.stderr) == (1, True)
    assert (git(clone, "status", "--porcelain"), git(clone, "log", "--format=%H %D")) == before


def test_define_the_version_in_one_file() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()


ENGINE = """#!/bin/sh
case "$1" in
info) ;;
inspect) test -n "$KNOWN" && echo "nvcr.io/nvidia/tritonserver@$KNOWN" ;;
build) printf '%s\\n' "$@" ;;
esac
"""
KNOWN, GIVEN = (f"sha256:{digit * 64}" for digit in "12")
TRITON = "nvcr.io/nvidia/tritonserver:26.05-py3"


@pytest.mark.parametrize(
    ("image", "known", "base", "digest"),
    [("", KNOWN, TRITON, KNOWN), ("", "", TRITON, ""), (f"triton@{GIVEN}", KNOWN, "triton", GIVEN)],
)
def test_label_the_base_image_and_its_digest(
    tmp_path: Path, image: str, known: str, base: str, digest: str
) -> None:
    engine = tmp_path / "podman"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    environ = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "ENGINE": "podman",
        "KNOWN": known,
    }
    command = [sys.executable, str(ROOT / "scripts/image/build.py"), "gpu"]
    done = subprocess.run(
        command, env=environ | {"TRITON_IMAGE": image}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    arguments = done.stdout.splitlines()
    labels = [f"--label=org.opencontainers.image.base.name={base}"]
    labels += [f"--label=org.opencontainers.image.base.digest={digest}"] if digest else []
    assert [word for word in arguments if word.startswith("--label=")] == labels
    assert f"TRITON_IMAGE={image or TRITON}" in arguments
    assert "triton-multi-model:gpu" in arguments
