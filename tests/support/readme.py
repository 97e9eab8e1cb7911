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
CUT = "…"  # stands for the rest of a list in an output that a page shows
# a heading, or a fenced block, with the comment or the name of a file above it
_PARTS = re.compile(
    r"^(?:## (?P<section>[^\n]+)|(?:<!-- (?P<marker>[^\n]+?) -->\n|`(?P<file>[\w./-]+)`:\n\n)?"
    r"```(?P<language>\w+)\n(?P<text>.*?)^```)$",
    re.MULTILINE | re.DOTALL,
)
# the commands that start servers
SERVE, SERVE_ALONE, SIMULATE = "make run", "./serve", ".venv/bin/python -m simulate"
ENGINE = " ".join(f"--env {name}={value}" for name, value in FP32.items())
PORTS = ("8080", "8081", "8001", "8002")  # the ports that the pages name


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


def parse_blocks(page: str) -> Iterator[Block]:
    section = ""
    for part in _PARTS.finditer(page):
        if part["section"]:
            section = part["section"]
        else:
            marker = part["marker"] or ""
            file = part["file"] or ""
            yield Block(section, part["language"], part["text"], marker, file)


def blocks(page: str = README) -> list[Block]:
    """Return the fenced blocks of a page."""
    return list(parse_blocks((ROOT / page).read_text(encoding="utf-8")))


def shell(page: str = README) -> list[Block]:
    """Return the blocks of a page that a reader runs."""
    return [block for block in blocks(page) if block.runs]


def commands(section: str, page: str = README) -> list[str]:
    """Return the commands of a section, for a test that its blocks name with "executed by"."""
    lines: list[str] = []
    for block in shell(page):
        if block.section == section:
            lines += block.commands
    return lines


@dataclass
class Reader:
    """Follows a page in a fresh checkout whose environment is set up already; only the ports
    differ. `blocks` are the page's blocks, of which the first `read` have been followed. `files` is
    the checkout's folder, into which the page's files are written. `ports` maps the page's ports to
    free ones. `running` contains the servers, keyed by the line that started them."""

    checkout: Path
    blocks: list[Block]
    files: str = "model_repository"
    read: int = 0
    ports: dict[str, int] = field(default_factory=lambda: {port: free_port() for port in PORTS})
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def follow(self, block: Block) -> None:
        """Follow the blocks up to this one, except those that have been followed already."""
        while self.read <= self.blocks.index(block):
            index = self.read
            self.read += 1  # a block that fails is not followed again
            self._follow_one(self.blocks[index], self._output_after(index))

    def _output_after(self, index: int) -> Block | None:
        """Return the next block if it shows the output of commands, and otherwise None."""
        if index + 1 == len(self.blocks):
            return None
        after = self.blocks[index + 1]
        return after if after.language in OUTPUTS and not after.file else None

    def _follow_one(self, block: Block, shown: Block | None) -> None:
        """Write the block's file, or run its commands and compare their output with `shown`."""
        if block.file:
            path = self.checkout / self.files / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._on_free_ports(block.text))
        elif block.runs and not block.marker:
            output = "".join(self._run(self._on_free_ports(command)) for command in block.commands)
            if shown:
                compare(output, replace(shown, text=self._on_free_ports(shown.text)))

    def _on_free_ports(self, text: str) -> str:
        """Return the text with the page's ports replaced."""
        ports = rf"\b({'|'.join(self.ports)})\b"
        return re.sub(ports, lambda match: str(self.ports[match[0]]), text)

    def _run(self, command: str) -> str:
        """Run a command, and return its output. If it is a command that starts a server, wait until
        the server is ready, and return ""."""
        if command == SERVE or command.endswith(f" {SERVE_ALONE}"):
            # the targets `setup` and `models` have nothing to do in this checkout
            make = f"make -o setup -o models run PORT={self.ports['8080']}"
            self._start(SERVE, command.replace(SERVE, make))
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
            ping = f"http://127.0.0.1:{self.ports['8080']}/ping"
            return requests.get(ping, timeout=PATIENCE).status_code == 200
        except requests.RequestException:
            return False

    def _log_file(self, name: str) -> Path:
        return self.checkout.parent / f"{name.split()[-1]}.log"

    def _log(self, name: str) -> str:
        return self._log_file(name).read_text(encoding="utf-8", errors="replace")

    def _stop(self, name: str) -> None:
        """Send Ctrl-C (SIGINT) to the whole process group."""
        process = self.running.pop(name, None)
        if process:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=PATIENCE)

    def leave(self) -> None:
        """Stop all servers."""
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
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SERVE_", "SAGEMAKER_", "AWS_", "PYTEST"))
    }
    return inherited | FP32 | {"SERVE_HOST": "127.0.0.1"}


def compare(output: str, shown: Block) -> None:
    """Assert that the output equals what is shown, except for the last digits of numbers."""
    if shown.language == "json":
        text = shown.text.replace(CUT, f'"{CUT}"')  # as a string, so that it is JSON
        assert_alike(json.loads(output), json.loads(text))
    else:
        assert_alike(_words(output), _words(shown.text))


def _words(text: str) -> list[str | float]:
    """Return the words of the text, with decimal numbers as floats."""
    is_decimal = re.compile(r"-?\d+\.\d+").fullmatch
    return [float(word) if is_decimal(word) else word for word in text.split()]


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
        if shown and shown[-1] == CUT:
            assert len(got) >= len(shown)
            shown = shown[:-1]
            got = got[: len(shown)]
        assert len(got) == len(shown)
        for got_item, shown_item in zip(got, shown, strict=True):
            assert_alike(got_item, shown_item)
    elif isinstance(shown, float):
        assert got == pytest.approx(shown, abs=0.02, rel=0.01)
    else:
        assert got == shown
