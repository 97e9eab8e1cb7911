"""Defines the faults: what each does to a running server, and which errors callers may see."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from serving.model_status.models import Entry
from serving.model_status.shared_files import ModelsFile
from serving.model_status.states import FAILED, READY, REFUSED, RELOADING, UNLOADING, Event
from tests.support.harness import Server, tensor, wait_until

SHM_MB, RUN_DIR_MB = 128, 64
SECONDS_FULL = 5.0
TELLER = "models/teller/1/model.py"  # relative to the folder of the server's log


class Confined(Server):
    """Runs a server with a small /dev/shm and a small run folder of its own. Requires root."""

    prefix = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        f"mount -t tmpfs -o size={SHM_MB}m none /dev/shm && mkdir -p $SERVE_RUN_DIR && "
        f'mount -t tmpfs -o size={RUN_DIR_MB}m none $SERVE_RUN_DIR && exec "$0" "$@"',
    )

    def inside(self, path: str | Path) -> Path:
        return Path(f"/proc/{self.process.pid}/root{path}")

    def status(self) -> dict[str, Any]:
        outside = self.run_dir
        self.run_dir = self.inside(outside)
        try:
            return super().status()
        finally:
            self.run_dir = outside


# when models are loaded -> the server's variables
MODES = {
    "at start": {},
    "on demand": {"SERVE_MODELS": "on-demand"},
    "on change": {"SERVE_RELOAD": "true"},
}
Condition = Callable[[], bool]


@dataclass(frozen=True)
class Fault:
    """A fault that `strike` causes. `strike` returns a condition that is true when the fault is
    over, because the test has repaired it or the server has noticed it. `cuts` means that
    connections may end without an answer, and `works` that no process hangs. `events` are the
    events of a model that the fault causes. `mode` is one of MODES."""

    name: str
    strike: Callable[[Confined], Condition]
    cuts: bool = False
    works: bool = False
    events: tuple[Event, ...] = ()
    mode: str = "at start"


def master(name: str) -> Callable[[Server], int]:
    return lambda server: server.pid(name)


def worker(name: str) -> Callable[[Server], int]:
    if name == "gunicorn":
        return lambda server: server.workers()[0]
    return lambda server: psutil.Process(server.pid(name)).children()[0].pid


def stubs(server: Server, version: str) -> list[int]:
    """Return the processes of a version of a model, such as "scale/2"."""
    children = psutil.Process(server.pid("tritonserver")).children()
    return [
        child.pid
        for child in children
        if not is_gone(child.pid) and f"/{version}/" in " ".join(child.cmdline())
    ]


def stub(server: Server) -> int:
    return stubs(server, "scale/2")[0]


def entries(server: Confined) -> Mapping[str, Entry]:
    """Return the entries of the manager's table, keyed by the models' names."""
    return ModelsFile(server.inside(server.run_dir / "models.json")).look().entries


def state(server: Confined, model: str) -> str:
    """Return the model's state in the manager's table, or "" if the table does not contain it."""
    found = entries(server)
    return found[model].state if model in found else ""


def wait_for(server: Confined, model: str, expected: str) -> None:
    wait_until(lambda: state(server, model) == expected, f"'{model}' is {expected}")


def is_gone(pid: int) -> bool:
    """Return whether the process has ended. Zombies count as ended, because tritonserver reaps
    none."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def send(number: signal.Signals, find: Callable[[Server], int]) -> Callable[[Confined], Condition]:
    def strike(server: Confined) -> Condition:
        pid = find(server)
        os.kill(pid, number)
        return lambda: is_gone(pid)

    return strike


def fill(where: Callable[[Confined], Path]) -> Callable[[Confined], Condition]:
    """Fill a file system for some seconds."""

    def strike(server: Confined) -> Condition:
        filler, begun = where(server) / "filler", time.monotonic()
        with filler.open("wb", buffering=0) as file:
            while _written(file.fileno()):
                pass

        def healed() -> bool:
            if time.monotonic() - begun > SECONDS_FULL:
                filler.unlink(missing_ok=True)
                return True
            with filler.open("ab", buffering=0) as file:
                _written(file.fileno())
            return False

        return healed

    return strike


def _written(descriptor: int) -> bool:
    try:
        return os.write(descriptor, bytes(2**20)) > 0
    except OSError:
        return False


def pause(server: Confined) -> Condition:
    """Pause the whole container for longer than the hang timeout."""
    pids = server.processes()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + hang_timeout(server) + 2

    def over() -> bool:
        if time.monotonic() < until:
            return False
        # resume stubs before tritonserver, which monitors them
        for pid in (server.process.pid, *sorted(pids, reverse=True)):
            os.kill(pid, signal.SIGCONT)
        return True

    return over


def hang_timeout(server: Server) -> float:
    environ = psutil.Process(server.process.pid).environ()
    return float(environ.get("SERVE_HANG_TIMEOUT", "15"))


def slow_executes(server: Confined) -> Condition:
    """Let two callers keep one model busy, each for longer than the hang timeout."""
    body = {"model_name": "sleeper", "instances": [hang_timeout(server) + 1]}
    threads = [
        threading.Thread(target=server.post, kwargs={"json": body}, daemon=True) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    return lambda: not any(thread.is_alive() for thread in threads)


def stub_and_manager(server: Confined) -> Condition:
    """Kill a model's process, and the manager before or while it reloads the model."""
    killed, manager = stub(server), wait_until(lambda: server.pid("manager"), "a manager")
    os.kill(killed, signal.SIGKILL)
    os.kill(manager, signal.SIGKILL)

    def answers() -> bool:
        one = tensor([1])
        return (
            server.post("/v2/models/scale/versions/2/infer", json={"inputs": [one]}).status_code
            == 200
        )

    return lambda: server.pid("manager") not in (None, manager) and answers()


def kill_tritonserver(server: Confined) -> Condition:
    return send(signal.SIGKILL, master("tritonserver"))(server)


def stub_and_tritonserver(server: Confined) -> Condition:
    """Kill a model's process, and tritonserver while it reloads the model."""
    os.kill(stub(server), signal.SIGKILL)
    wait_for(server, "scale", RELOADING)
    return kill_tritonserver(server)


def many_deaths(server: Confined) -> Condition:
    """Kill a model's process each time that it has been reloaded, until the model is refused. Only
    a new tritonserver loads it again within five minutes."""

    def refused() -> bool:
        if state(server, "scale") == READY:
            for pid in stubs(server, "scale/2"):
                os.kill(pid, signal.SIGKILL)
        return state(server, "scale") == REFUSED

    wait_until(refused, "the model is refused")
    return kill_tritonserver(server)


@contextmanager
def changed_code(server: Server, first: str = "raise OSError") -> Iterator[None]:
    """In this context, the code of the model `teller` begins with the line `first`."""
    file = server.log.parent / TELLER
    code = file.read_text()
    file.write_text(f"{first}\n{code}")
    try:
        yield
    finally:
        file.write_text(code)


def failed_reload(server: Confined) -> Condition:
    """Kill the process of a model that can no longer be loaded. Then repair the model, and let a
    new tritonserver load it."""
    with changed_code(server):
        os.kill(stubs(server, "teller/1")[0], signal.SIGKILL)
        wait_for(server, "teller", REFUSED)
    return kill_tritonserver(server)


def failed_load(server: Confined) -> Condition:
    """Kill tritonserver while a model cannot be loaded. Then repair the model, and let another
    tritonserver load it."""
    with changed_code(server):
        server.kill(server.pid("tritonserver"))
        wait_for(server, "teller", FAILED)
    return kill_tritonserver(server)


def stub_in_unload(server: Confined) -> Condition:
    """Kill a model's process during an unload. Stop the process before, so that the unload does not
    end too early. The next call loads the model again."""
    pid = stub(server)
    os.kill(pid, signal.SIGSTOP)
    unload = threading.Thread(target=server.ask, args=("DELETE", "/models/scale"), daemon=True)
    unload.start()
    wait_for(server, "scale", UNLOADING)
    os.kill(pid, signal.SIGKILL)
    return lambda: not unload.is_alive()


def manager_in_load(server: Confined) -> Condition:
    """Kill the manager while it loads a model whose code does not end."""
    begun = server.log.parent / "loading"
    wait = f"import time; open('{begun}', 'w'); time.sleep(1000)"
    with changed_code(server, wait):
        server.ask("DELETE", "/models/teller").raise_for_status()
        wait_until(begun.exists, "a call loads the model")
        return send(signal.SIGKILL, master("manager"))(server)


def manager_in_change(server: Confined) -> Condition:
    """Kill the manager while it tries a changed model. The next manager serves the change."""
    begun = server.log.parent / "trying"
    before = entries(server)["teller"].load_id
    file = server.log.parent / TELLER
    file.write_text(f"open({str(begun)!r}, 'w')\n{file.read_text()}")
    wait_until(begun.exists, "the changed model is tried")
    os.kill(server.pid("manager"), signal.SIGKILL)
    return lambda: entries(server)["teller"].load_id != before


def without_socket(server: Confined) -> Condition:
    """Kill a model's process. No call reports it, so only the manager's own check can find it."""
    killed = stub(server)
    server.inside(server.run_dir / "deaths.sock").unlink()
    os.kill(killed, signal.SIGKILL)
    return lambda: is_gone(killed)


def model_exits(server: Confined) -> Condition:
    def answers(x: float) -> bool:
        one = tensor([x], [1])
        return (
            server.post(params={"model_name": "exiter"}, json={"inputs": [one]}).status_code == 200
        )

    answers(13)
    return lambda: answers(1)


def _signals(number: signal.Signals, does: str) -> Iterator[Fault]:
    events = {
        "tritonserver": (Event.SERVER_STARTED, Event.LOADED),
        "manager": (Event.MANAGER_STARTED,),
    }
    for name, caused in events.items():
        yield Fault(f"{name} {does} ({number.name})", send(number, master(name)), events=caused)
    for name in ("gunicorn", "nginx"):
        for whole, find in ((f"{name}'s master", master), (f"a worker of {name}", worker)):
            yield Fault(f"{whole} {does} ({number.name})", send(number, find(name)), cuts=True)


# Faults that end tritonserver are not next to each other, because `serve` gives up if it ends too
# often within a minute.
FAULTS = [
    *_signals(signal.SIGKILL, "killed"),
    *_signals(signal.SIGTERM, "asked to end"),
    Fault(
        "a model's process killed (SIGKILL)",
        send(signal.SIGKILL, stub),
        events=(Event.DIED, Event.RELOAD_ENDED, Event.PROCESSES_SEEN),
    ),
    Fault("tritonserver stopped (SIGSTOP)", send(signal.SIGSTOP, master("tritonserver"))),
    Fault("manager stopped (SIGSTOP)", send(signal.SIGSTOP, master("manager"))),
    Fault("a model's process and the manager killed", stub_and_manager, events=(Event.DUE,)),
    Fault(
        "a model's process and tritonserver killed",
        stub_and_tritonserver,
        events=(Event.INTERRUPTED,),
    ),
    Fault(
        "a worker of gunicorn stopped (SIGSTOP)",
        send(signal.SIGSTOP, worker("gunicorn")),
        cuts=True,
    ),
    Fault("a model's process killed while the manager's socket is gone", without_socket),
    Fault(
        "a model's process killed again and again",
        many_deaths,
        events=(Event.REFUSE, Event.UNLOAD_ENDED),
    ),
    Fault("a model ends its process in execute", model_exits),
    Fault(f"/dev/shm full for {SECONDS_FULL:g} s", fill(lambda server: server.inside("/dev/shm"))),
    Fault("a reload fails", failed_reload, events=(Event.REFUSE,)),
    Fault(
        f"the run folder full for {SECONDS_FULL:g} s",
        fill(lambda server: server.inside(server.run_dir)),
        cuts=True,
    ),
    # after a pause, gunicorn's own timeout may end a worker, and with it a stream that has begun
    Fault(
        "the whole container paused for longer than a hang may last", pause, cuts=True, works=True
    ),
    Fault("a load by a new tritonserver fails", failed_load, events=(Event.LOAD_FAILED,)),
    Fault("two executes of one model, each longer than a hang may last", slow_executes, works=True),
    Fault(
        "a model's process killed during an unload",
        stub_in_unload,
        events=(Event.UNLOAD, Event.REMOVE),
        mode="on demand",
    ),
    Fault(
        "the manager killed during a load", manager_in_load, events=(Event.ADD,), mode="on demand"
    ),
    Fault(
        "the manager killed while it tries a changed model",
        manager_in_change,
        events=(Event.SERVE,),
        mode="on change",
    ),
]
