"""Inspects the processes on this machine: how they ended, how much memory they use, and which of
them are stubs, the processes in which Triton's Python backend runs models."""

import glob
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MEANINGS: dict[int, str] = {
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "it gave up",
    signal.SIGBUS: "perhaps /dev/shm or the run folder was full",
}
PROGRAM = "triton_python_backend_stub"
FEWEST_WORDS = 4  # the minimum number of words in a stub's command line
# positions of words in a stub's command line
FILE = 1  # the model's file
INSTANCE = -2  # the instance's name, which also occurs in Triton's messages
PROC = Path("/proc")
# positions of fields in the list that _stat_fields returns
STATE = 0
PARENT = 1
EXIT_CODE = 49


def dying_with_us(signal_name: str) -> tuple[str, ...]:
    """Return words to put before a command line, which make the kernel send a signal to the new
    process when this process ends for any reason. Return () if setpriv is missing. (The argument
    preexec_fn of subprocess could do the same, but is not safe in a process with threads.)"""
    return ("setpriv", "--pdeathsig", signal_name, "--") if shutil.which("setpriv") else ()


def remove_leftovers(pattern: str, program: str, since: float) -> None:
    """Remove the current user's folders that match the glob `pattern` and were last modified at
    `since` (in seconds since 1970) or later. Do nothing if a process called `program` is running,
    because the folders may belong to it."""
    folders = glob.glob(pattern)  # noqa: PTH207
    if not folders:
        return
    name = f"{program}\n".encode()
    if any(_read(file) == name for file in PROC.glob("[0-9]*/comm")):
        return
    for folder in map(Path, folders):
        with suppress(OSError):
            status = folder.stat()
            if status.st_uid == os.geteuid() and status.st_mtime >= since:
                shutil.rmtree(folder)


def describe_exit(code: int, meaning: str = "") -> str:
    """Describe an exit code in words. A negative code is a negated signal number. `meaning` says
    why the process was killed, if that is known."""
    if code >= 0:
        return f"exited with status {code}"
    number = -code
    is_known = number in set(signal.Signals)
    name = signal.Signals(number).name if is_known else f"signal {number}"
    meaning = meaning or MEANINGS.get(number, "")
    return f"was killed by {name} ({meaning})" if meaning else f"was killed by {name}"


def last_line(output: str) -> str:
    """Return the last line of a program's output, which usually says why the program ended. Return
    "it says nothing" if there is no output."""
    lines = output.strip().splitlines()
    return lines[-1] if lines else "it says nothing"


def memory_used_by(pid: int) -> int:
    """Return how many bytes of unreclaimable memory a process and its descendants hold. These are
    the anonymous pages of all of them, and the shared memory of the process itself. Return 0 if the
    process no longer exists."""
    anonymous = sum(_memory(process, b"RssAnon:") for process in process_tree(pid))
    return anonymous + _memory(pid, b"RssShmem:")


def memory_by_model(server: int) -> dict[str, int]:
    """Return how many bytes of unreclaimable memory the stubs of each model hold, keyed by Triton's
    name for the model. The key "" stands for tritonserver itself, whose process id is `server`."""
    sizes = {"": _memory(server, b"RssAnon:") + _memory(server, b"RssShmem:")}
    stubs = Stubs()
    stubs.look(server)
    for stub in stubs.all():
        sizes[stub.model] = sizes.get(stub.model, 0) + _memory(stub.pid, b"RssAnon:")
    return sizes


def _memory(pid: int, field: bytes) -> int:
    """Return one of the sizes in /proc/PID/status in bytes, or 0 if the process no longer
    exists."""
    for line in _read(PROC / f"{pid}/status").splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    return 0


def process_tree(pid: int) -> Iterator[int]:
    """Yield the process ids of a process and of all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in PROC.glob("[0-9]*"):
        child = int(entry.name)
        fields = _stat_fields(child)
        if fields:
            children.setdefault(int(fields[PARENT]), []).append(child)
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        yield parent
        waiting += children.get(parent, [])


def _stat_fields(pid: int) -> list[bytes]:
    """Return the fields that follow the program's name in /proc/PID/stat, or [] if the process no
    longer exists. The name is in parentheses and may contain any characters."""
    _, _, rest = _read(PROC / f"{pid}/stat").rpartition(b")")
    return rest.split()


def _read(file: Path) -> bytes:
    """Return the content of a file in /proc, or b"" if the process no longer exists."""
    with suppress(OSError):
        return file.read_bytes()
    return b""


@dataclass(frozen=True)
class Stub:
    """A process in which Triton's Python backend runs an instance of a model. `file` is
    REPOSITORY/MODEL/VERSION/FILE. `seen_alive` is when the process was last seen alive
    (time.monotonic)."""

    pid: int
    file: Path
    instance: str
    seen_alive: float

    @property
    def model(self) -> str:
        """Return Triton's name for the model."""
        return self.file.parts[-3]


def _stub(pid: int) -> Stub | None:
    """Return the running stub with this process id, or None if the process is not one."""
    line = _read(PROC / f"{pid}/cmdline").decode("utf-8", "replace")
    words = line.split("\0")[:-1]
    if len(words) < FEWEST_WORDS or Path(words[0]).name != PROGRAM:
        return None
    return Stub(pid, Path(words[FILE]), words[INSTANCE], time.monotonic())


class Stubs:
    """Finds stubs that have died. They stay zombies until tritonserver ends, unless tritonserver
    itself ended them. The same object can be used after a restart of tritonserver."""

    def __init__(self) -> None:
        self._seen: dict[int, Stub] = {}
        self._zombies: set[int] = set()

    def look(self, server: int) -> list[tuple[Stub, str]]:
        """Return the stubs that have died, except those that an earlier call returned, each with a
        description of how it ended. `server` is tritonserver's process id. A stub counts as dead
        only if two calls find it dead, because tritonserver may be about to reap it."""
        seen_before = self._seen
        zombies_before = self._zombies
        dead: list[tuple[Stub, str]] = []
        self._seen = {}
        self._zombies = set()
        for pid in sorted(process_tree(server)):
            if stub := _stub(pid):  # None for a zombie, which has no command line
                self._seen[pid] = stub
                continue
            fields = _stat_fields(pid)
            is_zombie = fields and fields[STATE] == b"Z"
            if not is_zombie or pid not in seen_before:  # not a stub, or returned before
                continue
            stub = seen_before[pid]
            self._zombies.add(pid)
            if pid in zombies_before:
                code = os.waitstatus_to_exitcode(int(fields[EXIT_CODE]))
                dead.append((stub, f"it {describe_exit(code)}"))
            else:  # it counts as dead if the next call finds it dead too
                self._seen[pid] = stub
        return dead

    def all(self) -> list[Stub]:
        """Return the stubs seen by the last call to `look`."""
        return list(self._seen.values())
