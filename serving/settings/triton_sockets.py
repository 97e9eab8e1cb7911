"""Where tritonserver listens: on Unix sockets in a folder of the run folder that only the container's user may enter.

So no other process of the machine, no sidecar and no browser reaches it, and nothing needs a secret. What others may
ask of Triton's gRPC and metrics goes through nginx.
"""

from dataclasses import dataclass
from pathlib import Path

GRPC_PORT = 8001  # Triton puts it behind the socket's name, as it would behind a host


@dataclass(frozen=True)
class TritonSockets:
    """The sockets in `folder`."""

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

    @property
    def sagemaker(self) -> Path:
        """Of multi-model mode."""
        return self.folder / "sagemaker.sock"
