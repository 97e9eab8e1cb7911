"""What is where in the run folder, which all processes of a container share."""

from dataclasses import dataclass
from pathlib import Path

GRPC_PORT = 8001  # Triton puts it behind the socket's name, as it would behind a host


@dataclass(frozen=True)
class TritonSockets:
    """Where tritonserver listens: on Unix sockets in a folder that only the container's user may enter.

    So no other process of the machine, no sidecar and no browser reaches it, and nothing needs a secret. What others
    may ask of Triton's gRPC and metrics goes through nginx.
    """

    folder: Path

    @property
    def http(self) -> Path:
        return self.folder / "http.sock"

    @property
    def grpc(self) -> Path:
        return self.folder / f"grpc.sock:{GRPC_PORT}"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.sock"


class _File:
    """A file or folder of that name in the run folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: "RunFolder", _: object = None) -> Path:
        return folder.run_dir / self._name


class RunFolder:
    """What lies in `run_dir`; Settings is one."""

    run_dir: Path

    staged_folder = _File("models")  # Triton's repository: NAME/ for each model (serving/repository/store.py)
    copies_folder = _File("copies")  # of folders that are watched: LOAD/NAME
    table_file = _File("models.json")  # what is known of each model (serving/model_status/table.py)
    leases_file = _File("leases")  # counters of the requests in flight (serving/model_status/shared_files.py)
    status_file = _File("status.json")  # what `serve` says about the processes (serving/host/files.py)
    manager_socket = _File("manager.sock")  # where the model manager answers HTTP
    deaths_socket = _File("deaths.sock")  # where it hears of models' processes that have died
    gunicorn_socket = _File("gunicorn.sock")

    @property
    def triton_sockets(self) -> TritonSockets:
        """Where tritonserver listens."""
        return TritonSockets(self.run_dir / "triton")

    @property
    def shared_memory_file(self) -> Path:
        """The file that says how all names of ours in /dev/shm begin; nobody can guess it."""
        return self.triton_sockets.folder / "shared-memory"
