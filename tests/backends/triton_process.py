"""Starts and kills a real tritonserver, and makes calls that the tests of several backends
share."""

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import tritonclient.grpc as grpcclient
from numpy.typing import NDArray
from tritonclient.grpc import InferenceServerClient as Client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from serving.host import tritonserver
from tests.support.harness import PATIENCE, free_port, wait_until
from tests.support.started import ends_with, kill

SHARED = "shm-region-prefix-name="
Arrays = dict[str, NDArray[Any]]


@dataclass
class Server:
    """A tritonserver in its own process group. `log` is the output of tritonserver and its
    stubs."""

    process: subprocess.Popen[bytes]
    log: Path
    http: int
    grpc: int

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def client(self) -> grpcclient.InferenceServerClient:
        return grpcclient.InferenceServerClient(f"127.0.0.1:{self.grpc}")


def shared_memory(process: subprocess.Popen[bytes]) -> list[Path]:
    arguments = cast("list[str]", process.args)
    prefix = next(word.rpartition(SHARED)[2] for word in arguments if SHARED in word)
    return list(Path("/dev/shm").glob(f"{prefix}*"))


@contextlib.contextmanager
def serving(
    repository: Path, backends: Path, log: Path, *options: str, **variables: str
) -> Iterator[Server]:
    """Start a tritonserver, and kill it at the end. Not all of its models need to load."""
    http, grpc, metrics = (free_port() for _ in range(3))
    named = {"http": http, "grpc": grpc, "metrics": metrics}.items()
    addresses = [
        option
        for name, port in named
        for option in (f"--{name}-address=127.0.0.1", f"--{name}-port={port}")
    ]
    prefix = f"build-{secrets.token_hex(8)}"
    command = [
        str(tritonserver.binary()),
        f"--backend-directory={backends}",
        f"--model-repository={repository}",
    ]
    command += [
        f"--backend-config={name},{SHARED}{prefix}"
        for name in tritonserver.python_backends(backends)
    ]
    environment = tritonserver.with_stub_wait(tritonserver.environment(os.environ))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *addresses, "--exit-on-error=false", *options],
            env=environment | {"SERVE_INFERENCE_THREADS": "1"} | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    ends_with(lambda: kill(process))
    running = Server(process, log, http, grpc)

    def started() -> bool:
        return "Started Metrics Service" in running.text()

    try:
        wait_until(lambda: started() or process.poll() is not None, "tritonserver starts or ends")
        assert started(), f"tritonserver did not start:\n{running.text()[-4000:]}"
        yield running
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill tritonserver and its process group. A stop would take seconds, and a server whose stub
    cannot start ignores SIGTERM. Remove its files in shared memory."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for left in shared_memory(process):
        left.unlink(missing_ok=True)


def infer(client: Client, model: str, feed: Arrays, outputs: Sequence[str] = ()) -> Arrays:
    tensors = []
    for name, array in feed.items():
        tensors.append(
            grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        )
        tensors[-1].set_data_from_numpy(array)
    requested = [grpcclient.InferRequestedOutput(name) for name in outputs] or None
    result = client.infer(model, tensors, outputs=requested, client_timeout=PATIENCE)
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def executions(client: Client, model: str) -> tuple[int, int]:
    statistics = client.get_inference_statistics(model).model_stats[0]
    return statistics.inference_count, statistics.execution_count


def together(client: Client, model: str, feeds: Sequence[Arrays]) -> list[Arrays | Exception]:
    """Send the feeds at once, so that the dynamic batcher merges them. Return the answers or
    Triton's errors."""

    def one(feed: Arrays) -> Arrays | Exception:
        try:
            return infer(client, model, feed)
        except InferenceServerException as err:
            failed: Exception = err
            return failed

    with ThreadPoolExecutor(len(feeds)) as pool:
        return list(pool.map(one, feeds))


def answered_together(
    client: Client, model: str, feeds: Sequence[Arrays], most: int
) -> list[Arrays]:
    """Send feeds at once until they take at most `most` executions. Return the answers. On a busy
    machine, some may arrive too late to be merged. Triton updates its counts only after it has
    answered."""
    rows = sum(len(next(iter(feed.values()))) for feed in feeds)

    def merged() -> list[Arrays] | None:
        before = executions(client, model)
        answers = [answer for answer in together(client, model, feeds) if isinstance(answer, dict)]
        assert len(answers) == len(feeds)
        after = wait_until(
            lambda: (now := executions(client, model))[0] >= before[0] + rows and now,
            f"{rows} inferences are counted",
        )
        return answers if after[0] == before[0] + rows and after[1] - before[1] <= most else None

    answers: list[Arrays] = wait_until(merged, f"requests to {model} come together")
    return answers


def config(client: Client, model: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.get_model_config(model, as_json=True)["config"]
    return answer


def refusal(client: Client, model: str) -> str:
    models = client.get_model_repository_index(as_json=True)["models"]
    states = {entry["name"]: (entry["state"], entry.get("reason", "")) for entry in models}
    assert states[model][0] == "UNAVAILABLE"
    return str(states[model][1])
