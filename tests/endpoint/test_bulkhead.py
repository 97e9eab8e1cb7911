"""Models that hang leave the others room, past Python and in the Flask app."""

from collections.abc import Callable, Iterator

import pytest
import requests

from tests.support.harness import Server, make_scale, make_sleeper, wait_until
from tests.support.load import Load

PLACES = 16  # of which two models that hang leave four at least
HANGING = ("sleeper", "dreamer")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("bulkhead")
    make_scale(folder / "models")
    for name in HANGING:
        make_sleeper(folder / "models", name)
    settings = {"SERVE_MAX_CONCURRENCY": str(PLACES), "SERVE_WORKERS": "2", "SERVE_REQUEST_TIMEOUT": "20"}
    server = Server(folder, folder / "models", **settings).wait_ready()
    yield server
    assert server.stop() == 0
    assert server.processes() == []


def tensors(name: str, shape: list[int], value: float, **more: object) -> dict[str, object]:
    tensor = {"name": name, "shape": shape, "datatype": "FP32", "data": [value] * shape[-1]}
    return {"inputs": [tensor], **more}


def by_flask(server: Server, model: str, body: dict[str, object]) -> requests.Response:
    """The door leaves a body with a parameter that it does not know to Flask."""
    return server.post(f"/v2/models/{model}/infer", json=body | {"parameters": {"own": 1}})


def past_flask(server: Server, model: str, body: dict[str, object]) -> requests.Response:
    return server.post(f"/v2/models/{model}/infer", json=body)


@pytest.mark.parametrize("ask", [by_flask, past_flask])
def test_callers_of_models_that_hang_leave_the_others_room(
    running: Server, ask: Callable[[Server, str, dict[str, object]], requests.Response]
) -> None:
    hang, sound = tensors("seconds", [1], 0.5), tensors("x", [1, 2], 1)
    with Load(lambda number: ask(running, HANGING[number % 2], hang), callers=2 * PLACES) as load:
        wait_until(lambda: load.answers["503 overloaded"] > 2 * PLACES, "more of them are refused")
        others = [ask(running, "scale", sound).status_code for _ in range(20)]
        refused = wait_until(lambda: refusal(ask(running, "sleeper", hang)), "one that is refused")
    assert others == [200] * 20
    assert "SERVE_MAX_CONCURRENCY" in refused["error"]


def refusal(reply: requests.Response) -> dict[str, str]:
    return reply.json() if reply.status_code == 503 else {}
