"""Calls of a tritonserver that the tests of several backends share."""

from collections.abc import Sequence
from typing import Any

import tritonclient.grpc as grpcclient
from numpy.typing import NDArray
from tritonclient.grpc import InferenceServerClient as Client
from tritonclient.utils import np_to_triton_dtype

from tests.backends.triton_process import at_once
from tests.support.harness import PATIENCE, wait_until

Arrays = dict[str, NDArray[Any]]


def infer(client: Client, model: str, feed: Arrays, outputs: Sequence[str] = ()) -> Arrays:
    tensors = []
    for name, array in feed.items():
        tensors.append(grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    requested = [grpcclient.InferRequestedOutput(name) for name in outputs] or None
    result = client.infer(model, tensors, outputs=requested, client_timeout=PATIENCE)
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def executions(client: Client, model: str) -> tuple[int, int]:
    """Return the numbers of inferences and executions since the start."""
    statistics = client.get_inference_statistics(model).model_stats[0]
    return statistics.inference_count, statistics.execution_count


def together(client: Client, model: str, feeds: Sequence[Arrays]) -> list[Arrays | Exception]:
    """Sent at once; the delay in these models' dynamic batcher merges them."""
    return at_once(lambda feed: infer(client, model, feed), feeds)


def answered_together(client: Client, model: str, feeds: Sequence[Arrays], most: int) -> list[Arrays]:
    """Send feeds at once until they take at most `most` executions; return the answers.

    On a busy machine some may come too late to be merged, and Triton counts after it has answered.
    """
    rows = sum(len(next(iter(feed.values()))) for feed in feeds)

    def merged() -> list[Arrays] | None:
        before = executions(client, model)
        answers = [answer for answer in together(client, model, feeds) if isinstance(answer, dict)]
        assert len(answers) == len(feeds)
        after = wait_until(
            lambda: (now := executions(client, model))[0] >= before[0] + rows and now, f"{rows} inferences are counted"
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
