"""Runs `python -m simulate` as a process."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.harness import PATIENCE, ROOT, has_variable, wait_until
from tests.support.started import ends_with, kill


class Command:
    """A running `python -m simulate` on a free port. `folder` contains its temporary files."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        sudo: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log, self.temporary = folder / "log", folder / "tmp"
        self.temporary.mkdir()
        self.mark = f"MARK={uuid.uuid4()}"
        command = [
            *sudo,
            sys.executable,
            "-m",
            "simulate",
            "--port",
            "0",
            "--env",
            self.mark,
            *arguments,
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {}), "TMPDIR": str(self.temporary)},
            )

        ends_with(self.kill_all)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_ready(self) -> str:
        def ready() -> re.Match[str] | None:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"it has ended with {self.process.returncode}:\n{self.output()[-3000:]}"
                )
            return re.search(r"^in service: (\S+)", self.output(), re.M)

        return str(wait_until(ready, f"it is in service:\n{self.output()[-3000:]}")[1])

    def stop(self, *numbers: int) -> int:
        for number in numbers:
            self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE)

    def kill_all(self) -> None:
        kill(self.process)
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left(self) -> list[int]:
        return [
            int(entry.name)
            for entry in Path("/proc").glob("[0-9]*")
            if has_variable(entry, self.mark.encode())
        ]
