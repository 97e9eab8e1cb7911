"""How our processes reach tritonserver in this run: what `serve` picked, as opposed to what the operator set.

`serve` writes it into the run folder before it starts anything, and gunicorn's workers read it there. Only the
container's user may read the file.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from serving.host.address import LOOPBACK, bracketed, reached
from serving.host.files import replace_file

SECRET_KEY = "serve"  # of the header triton-grpc-protocol-KEY, in which gRPC takes the secret


@dataclass(frozen=True)
class TritonAccess:
    """The ports and hosts that tritonserver listens on; a port of 0 is not used.

    `secret` is what gRPC calls that manage anything must show, "" where others cannot reach gRPC. The names of all that
    serves here in /dev/shm begin with `shared_memory`; nobody can guess it.
    """

    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    sagemaker_port: int = 0
    grpc_host: str = LOOPBACK
    metrics_host: str = LOOPBACK
    secret: str = ""
    shared_memory: str = ""

    @classmethod
    def read(cls, file: Path) -> "TritonAccess":
        return cls(**json.loads(file.read_bytes()))

    def write(self, file: Path) -> None:
        replace_file(file, json.dumps(asdict(self)).encode(), mode=0o600)

    @property
    def http_address(self) -> str:
        return f"{LOOPBACK}:{self.http_port}"

    @property
    def grpc_address(self) -> str:
        return f"{bracketed(reached(self.grpc_host))}:{self.grpc_port}"

    @property
    def metrics_address(self) -> str:
        return f"{bracketed(reached(self.metrics_host))}:{self.metrics_port}"

    @property
    def sagemaker_address(self) -> str:
        return f"{LOOPBACK}:{self.sagemaker_port}"


NO_TRITON = TritonAccess()
