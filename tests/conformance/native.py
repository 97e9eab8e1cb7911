"""Start native Triton as NVIDIA's SageMaker image does (docker/sagemaker/serve), from the same
repository."""

import contextlib
import os
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

from serving.host import tritonserver
from tests.backends.triton_process import SHARED, end
from tests.conformance import wire
from tests.support.harness import free_port, wait_until
from tests.support.started import ends_with, kill

PLATFORM = Path("/opt/ml/models")
VIEW = (
    'mount -t tmpfs none /opt && mkdir -p /opt/ml/models && mount --bind "{}" /opt/ml/models '
    '&& exec "$0" "$@"'
)
UNSHARED = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
BACKENDS = ("python", "onnxruntime")
NOT_OFFERED = ("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false")


class Native:
    """Runs one tritonserver, with its SageMaker endpoint at `port`. `options` are added to its
    command line."""

    def __init__(
        self,
        folder: Path,
        repository: Path,
        options: Sequence[str],
        health: str = "/ping",
        view: Sequence[str] = (),
        **variables: str,
    ) -> None:
        self._health, prefix = health, f"conformance-{secrets.token_hex(6)}"
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.log = free_port(), folder / "native.log"
        self._command = [
            *view,
            str(tritonserver.binary()),
            f"--model-repository={repository}",
            f"--backend-directory={tritonserver.backend_directory()}",
            "--model-config-name=cpu",
            "--model-control-mode=explicit",
            "--model-namespacing=true",
            *(f"--backend-config={name},{SHARED}{prefix}" for name in BACKENDS),
            *(option.replace("PORT", str(self.port)) for option in options),
        ]
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("SERVE_", "SAGEMAKER_"))
        }
        self._environ = tritonserver.environment(inherited) | variables
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                self._command,
                env=self._environ,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        ends_with(lambda: kill(process))
        return process

    def revive(self) -> None:
        self.process.kill()
        self.stop()
        self.process = self._start()
        self.wait_ready()

    def wait_ready(self) -> "Native":
        def ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"tritonserver has ended:\n{self.log.read_text(errors='replace')[-3000:]}"
                )
            with contextlib.suppress(OSError):
                return wire.send(self.port, "GET", self._health).status == 200
            return False

        wait_until(ready, f"native's {self._health} is 200")
        return self

    def stop(self) -> None:
        end(self.process)


def single(folder: Path, repository: Path, model: str) -> Native:
    options = [
        "--allow-sagemaker=true",
        "--sagemaker-port=PORT",
        *NOT_OFFERED,
        f"--load-model={model}",
    ]
    return Native(folder, repository, options, SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=model)


def multi(folder: Path, archives: Path) -> Native:
    """Start multi-model mode with a dummy repository. It accepts an archive with config.pbtxt at
    its root only below /opt/ml/models, so any other folder `archives` is mounted there."""
    (folder / "dummy").mkdir(parents=True)
    options = ["--allow-sagemaker=true", "--sagemaker-port=PORT", *NOT_OFFERED]
    view = () if archives == PLATFORM else (*UNSHARED, VIEW.format(archives))
    return Native(folder, folder / "dummy", options, view=view, SAGEMAKER_MULTI_MODEL="true")


def generating(folder: Path, repository: Path, *models: str) -> Native:
    """Start Triton's HTTP endpoint. In newer versions, the SageMaker endpoint calls its route
    generate for /invocations."""
    options = [
        "--http-address=127.0.0.1",
        "--http-port=PORT",
        "--allow-grpc=false",
        "--allow-metrics=false",
        *(f"--load-model={model}" for model in models),
    ]
    return Native(folder, repository, options, health="/v2/health/ready")
