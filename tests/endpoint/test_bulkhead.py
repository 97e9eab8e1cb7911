"""Models that hang leave room for the others."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.support.harness import SLEEPER, Server, make_scale, make_sleeper, wait_until

PLACES = 16  # of which two models that hang leave four at least
HANGING = ("sleeper", "dreamer")


def make_hanging(repository: Path, name: str) -> None:
    """The sleeper, which sleeps until there is a file `go` beside the repository."""
    make_sleeper(repository, name)
    loop = f'while seconds and not __import__("os").path.exists("{repository.parent}/go"):\n                '
    (repository / name / "1/model.py").write_text(SLEEPER.replace("time.sleep(seconds)", f"{loop}time.sleep(0.01)"))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("bulkhead")
    make_scale(folder / "models")
    for name in HANGING:
        make_hanging(folder / "models", name)
    settings = {"SERVE_MAX_CONCURRENCY": str(PLACES), "SERVE_WORKERS": "2", "SERVE_REQUEST_TIMEOUT": "20"}
    server = Server(folder, folder / "models", **settings).wait_ready()
    yield server
    assert server.stop() == 0
    server.wait_gone()


def tensors(name: str, shape: list[int], value: float, **more: object) -> dict[str, object]:
    tensor = {"name": name, "shape": shape, "datatype": "FP32", "data": [value] * shape[-1]}
    return {"inputs": [tensor], **more}


def by_body(server: Server, model: str, body: dict[str, object]) -> requests.Response:
    return server.post("/invocations", json=body | {"model_name": model})


def by_path(server: Server, model: str, body: dict[str, object]) -> requests.Response:
    return server.post(f"/v2/models/{model}/infer", json=body)


@pytest.mark.parametrize("ask", [by_body, by_path])
def test_callers_of_models_that_hang_leave_the_others_room(
    running: Server, ask: Callable[[Server, str, dict[str, object]], requests.Response]
) -> None:
    go, hang, sound = running.run_dir.parent / "go", tensors("seconds", [1], 1), tensors("x", [1, 2], 1)
    go.unlink(missing_ok=True)
    with ThreadPoolExecutor(2 * PLACES) as pool:
        callers = [pool.submit(ask, running, HANGING[number % 2], hang) for number in range(2 * PLACES)]
        try:
            # Who is being refused has a place too for a moment: with so many answered one is free.
            wait_until(lambda: sum(caller.done() for caller in callers) > PLACES, "more of them are refused")
            others = [ask(running, "scale", sound).status_code for _ in range(20)]
            refused = wait_until(lambda: refusal(ask(running, "sleeper", hang)), "one that is refused")
        finally:
            go.touch()
    assert others == [200] * 20
    assert "SERVE_MAX_CONCURRENCY" in refused["error"]
    assert {caller.result().status_code for caller in callers} == {200, 503}


def refusal(reply: requests.Response) -> dict[str, str]:
    return reply.json() if reply.status_code == 503 else {}
