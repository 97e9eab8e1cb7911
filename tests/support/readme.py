"""Follows README.md or a page of docs/ as a reader would: writes its files, runs its commands and
its Python, in a fresh checkout.

A block of commands is run unchanged unless the line above it says otherwise:

    <!-- needs AWS -->, … (NEEDS)    it cannot be run here
    <!-- executed by tests/… -->     a test there runs what commands(SECTION, PAGE) returns
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import requests

from tests.support.harness import BUNDLED, FP32, PATIENCE, ROOT, free_port, link_model, wait_until
from tests.support.started import ends_with, kill

README = "README.md"
AWS, GPU, FILES = "needs AWS", "needs a GPU", "needs files of yours"
NEEDS = (AWS, GPU, "needs AWS and a GPU", FILES)
EXECUTED_BY = "executed by "
OUTPUTS = ("json", "text")
CUT = "…"
_PARTS = re.compile(
    r"^(?:## (?P<section>[^\n]+)|(?:<!-- (?P<marker>[^\n]+?) -->\n|`(?P<file>[\w./-]+)`:\n\n)?"
    r"```(?P<language>\w+)\n(?P<text>.*?)^```)$",
    re.MULTILINE | re.DOTALL,
)
SERVE, SERVE_ALONE, SIMULATE = "make run", "./serve", ".venv/bin/python -m simulate"
ENGINE = " ".join(f"--env {name}={value}" for name, value in FP32.items())
PORTS = ("8080", "8081", "8001", "8002")


@dataclass(frozen=True)
class Block:
    """A fenced block. `marker` is the comment above it, `file` the name of the file to write."""

    section: str
    language: str
    text: str
    marker: str = ""
    file: str = ""

    @property
    def commands(self) -> list[str]:
        """Return the commands with continued lines joined. A Python block is one command."""
        if self.language == "python":
            return [f".venv/bin/python -c {shlex.quote(self.text)}"]
        return self.text.replace("\\\n", " ").splitlines()

    @property
    def runs(self) -> bool:
        """Return whether a reader runs the block, instead of saving or just reading it."""
        return self.language in ("sh", "python") and not self.file


def read_blocks(page: str) -> Iterator[Block]:
    section = ""
    for part in _PARTS.finditer(page):
        if part["section"]:
            section = part["section"]
        else:
            yield Block(
                section, part["language"], part["text"], part["marker"] or "", part["file"] or ""
            )


def blocks(page: str = README) -> list[Block]:
    return list(read_blocks((ROOT / page).read_text(encoding="utf-8")))


def shell(page: str = README) -> list[Block]:
    return [block for block in blocks(page) if block.runs]


def commands(section: str, page: str = README) -> list[str]:
    """Return the commands of a section, for a test that its blocks name with "executed by"."""
    return [
        command for block in shell(page) if block.section == section for command in block.commands
    ]


@dataclass
class Reader:
    """Follows a page in a fresh checkout whose environment is set up already; only the ports
    differ. `blocks` are the page's blocks. `files` is the checkout's folder, into which the page's
    files are written."""

    checkout: Path
    blocks: list[Block]
    files: str = "model_repository"
    read: int = 0
    ports: dict[str, int] = field(default_factory=lambda: {port: free_port() for port in PORTS})
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def follow(self, block: Block) -> None:
        """Follow the blocks up to this one, except those that have been followed already."""
        while self.read <= self.blocks.index(block):
            following = self.blocks[self.read]
            self.read += 1
            self._take(following, self._shown())

    def _shown(self) -> Block | None:
        after = self.blocks[self.read] if self.read < len(self.blocks) else None
        return after if after and after.language in OUTPUTS and not after.file else None

    def _take(self, block: Block, shown: Block | None) -> None:
        if block.file:
            path = self.checkout / self.files / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._on_free_ports(block.text))
        elif block.runs and not block.marker:
            output = "".join(self._run(self._on_free_ports(command)) for command in block.commands)
            if shown:
                compare(output, replace(shown, text=self._on_free_ports(shown.text)))

    def _on_free_ports(self, text: str) -> str:
        return re.sub(
            rf"\b({'|'.join(self.ports)})\b", lambda match: str(self.ports[match[0]]), text
        )

    def _run(self, command: str) -> str:
        if command == SERVE or command.endswith(f" {SERVE_ALONE}"):
            self._start(
                SERVE,
                command.replace(SERVE, f"make -o setup -o models run PORT={self.ports['8080']}"),
            )
            wait_until(self._serves, self._log(SERVE))
            return ""
        if command.startswith(SIMULATE):
            self._start(SIMULATE, f"{command} --port {self.ports['8081']} {ENGINE}")
            wait_until(
                lambda: "\nin service: " in self._log(SIMULATE), "the simulator is in service"
            )
            return ""
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=self.checkout,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return done.stdout

    def _start(self, name: str, command: str) -> None:
        """Start a server. First stop the server that the same line started before, as a reader
        would with Ctrl-C."""
        self._stop(name)
        with self._log_file(name).open("wb") as log:
            self.running[name] = process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.checkout,
                env=environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        ends_with(lambda: kill(process))

    def _serves(self) -> bool:
        try:
            return (
                requests.get(
                    f"http://127.0.0.1:{self.ports['8080']}/ping", timeout=PATIENCE
                ).status_code
                == 200
            )
        except requests.RequestException:
            return False

    def _log_file(self, name: str) -> Path:
        return self.checkout.parent / f"{name.split()[-1]}.log"

    def _log(self, name: str) -> str:
        return self._log_file(name).read_text(encoding="utf-8", errors="replace")

    def _stop(self, name: str) -> None:
        """Send Ctrl-C (SIGINT) to the whole process group."""
        if process := self.running.pop(name, None):
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=PATIENCE)

    def leave(self) -> None:
        for name in list(self.running):
            self._stop(name)


def fresh_checkout(folder: Path, page: Iterable[Block]) -> Path:
    """Make a folder like a clone after `make setup models`: the files, and this checkout's
    environment, weights and compiled modules, which every process of `serve` would otherwise
    compile again. It contains only the bundled models that the page names, because each start loads
    all of them."""
    checkout = folder / "checkout"
    # a file like serve.cpython-311.pyc.140 is just being written
    ignored = shutil.ignore_patterns(".*", "*.pyc.*", "tests", "dist", "model_repository")
    shutil.copytree(ROOT, checkout, ignore=ignored)
    text = " ".join(block.text for block in page)
    for name in filter(text.__contains__, BUNDLED):
        link_model(ROOT / "model_repository" / name, checkout / "model_repository")
    (checkout / ".venv").symlink_to(ROOT / ".venv")
    return checkout


def environment() -> dict[str, str]:
    """Return a reader's environment: without this project's variables, except the loopback address
    and the engine that gives the answers shown."""
    inherited = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("SERVE_", "SAGEMAKER_", "AWS_", "PYTEST"))
    }
    return inherited | FP32 | {"SERVE_HOST": "127.0.0.1"}


def compare(output: str, shown: Block) -> None:
    """Assert that the output equals what is shown, except for the last digits of numbers."""
    if shown.language == "json":
        assert_alike(json.loads(output), json.loads(shown.text.replace("…", f'"{CUT}"')))
    else:
        assert_alike(*([_number(word) for word in text.split()] for text in (output, shown.text)))


def _number(word: str) -> str | float:
    return float(word) if re.fullmatch(r"-?\d+\.\d+", word) else word


def assert_alike(got: object, shown: object) -> None:
    """Assert equality except for the last digits of numbers. In a list that ends with CUT, only the
    items shown are compared."""
    if isinstance(shown, dict):
        assert isinstance(got, dict)
        assert got.keys() == shown.keys()
        for key in shown:
            assert_alike(got[key], shown[key])
    elif isinstance(shown, list):
        assert isinstance(got, list)
        whole = CUT not in shown
        assert len(got) == len(shown) if whole else len(got) >= len(shown)
        for ours, theirs in zip(got, shown if whole else shown[:-1], strict=whole):
            assert_alike(ours, theirs)
    elif isinstance(shown, float):
        assert got == pytest.approx(shown, abs=0.02, rel=0.01)
    else:
        assert got == shown
