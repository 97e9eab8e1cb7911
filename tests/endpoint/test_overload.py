"""More callers than slots: the others are refused, every slot comes back, and models that hang leave room."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.support.harness import SLEEPER, Server, make_scale, make_sleeper, wait_until
from tests.support.load import Load

pytestmark = pytest.mark.stack

SLOTS = 4
CALLERS = 10 * SLOTS
REFUSED = 2 * CALLERS
SHARED = 16  # slots, of which two models that hang leave four at least
HANGING = ("sleeper", "dreamer")
BODY: dict[str, object] = {"inputs": [{"name": "seconds", "shape": [1], "datatype": "FP32", "data": [0.02]}]}
WAYS: tuple[tuple[str, dict[str, object], dict[str, str]], ...] = (
    ("/invocations", {"instances": [0.02]}, {}),
    ("/v2/models/sleeper/infer", BODY, {}),
    ("/invocations", {"instances": [0.02]}, {"Accept": "application/jsonlines"}),
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("overload")
    make_sleeper(folder / "models")
    server = Server(folder, folder / "models", SERVE_MAX_CONCURRENCY=str(SLOTS), SERVE_WORKERS="2").wait_ready()
    yield server
    assert server.stop() == 0
    server.wait_gone()


def ask(server: Server, number: int) -> requests.Response:
    path, body, headers = WAYS[number % len(WAYS)]
    return server.post(path, json=body, headers=headers)


def counted(server: Server) -> Counter[str]:
    """The requests by status, as /metrics has them."""
    found = Counter[str]()
    for code, number in re.findall(r'^serve_requests_total{code="(\d+)".*} (\S+)$', server.get("/metrics").text, re.M):
        found[code] += int(float(number))
    return found


def refusals(server: Server) -> list[dict[str, str]]:
    """Their lines in nginx's log."""
    lines = [json.loads(line) for line in server.output().splitlines() if '"status":503' in line]
    return [line for line in lines if line["code"] == "overloaded"]


def test_requests_beyond_the_limit_are_refused_counted_and_logged(running: Server) -> None:
    before = counted(running)
    with Load(lambda number: ask(running, number), callers=CALLERS) as load:
        wait_until(lambda: load.answers["503 overloaded"] >= REFUSED, "many are refused")
        assert {running.ping() for _ in range(20)} == {200}
    answers = {name.split()[0]: number for name, number in load.answers.items()}
    assert (set(answers), load.refused, load.cut) == ({"200", "503"}, 0, 0)
    wait_until(lambda: counted(running) - before == Counter(answers), lambda: f"{counted(running)} are {answers}")
    wait_until(lambda: len(refusals(running)) == answers["503"], "the log has them")
    with ThreadPoolExecutor(SLOTS) as pool:
        assert {reply.status_code for reply in pool.map(lambda n: ask(running, n), range(SLOTS))} == {200}


def make_hanging(repository: Path, name: str) -> None:
    """The sleeper, which sleeps until there is a file `go` beside the repository."""
    make_sleeper(repository, name)
    loop = f'while seconds and not __import__("os").path.exists("{repository.parent}/go"):\n                '
    (repository / name / "1/model.py").write_text(SLEEPER.replace("time.sleep(seconds)", f"{loop}time.sleep(0.01)"))


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("bulkhead")
    make_scale(folder / "models")
    for name in HANGING:
        make_hanging(folder / "models", name)
    settings = {"SERVE_MAX_CONCURRENCY": str(SHARED), "SERVE_WORKERS": "2", "SERVE_REQUEST_TIMEOUT": "20"}
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
    several: Server, ask: Callable[[Server, str, dict[str, object]], requests.Response]
) -> None:
    go, hang, sound = several.run_dir.parent / "go", tensors("seconds", [1], 1), tensors("x", [1, 2], 1)
    go.unlink(missing_ok=True)
    with ThreadPoolExecutor(2 * SHARED) as pool:
        callers = [pool.submit(ask, several, HANGING[number % 2], hang) for number in range(2 * SHARED)]
        try:
            # Who is being refused has a place too for a moment: with so many answered one is free.
            wait_until(lambda: sum(caller.done() for caller in callers) > SHARED, "more of them are refused")
            others = [ask(several, "scale", sound).status_code for _ in range(20)]
            refused = wait_until(lambda: refusal(ask(several, "sleeper", hang)), "one that is refused")
        finally:
            go.touch()
    assert others == [200] * 20
    assert "SERVE_MAX_CONCURRENCY" in refused["error"]
    assert {caller.result().status_code for caller in callers} == {200, 503}


def refusal(reply: requests.Response) -> dict[str, str]:
    return reply.json() if reply.status_code == 503 else {}
