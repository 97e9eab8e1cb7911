"""More callers than slots: the others are refused, and every slot comes back."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.support.harness import Server, make_sleeper, wait_until
from tests.support.load import Load

PLACES = 4
CALLERS = 10 * PLACES
REFUSED = 2 * CALLERS
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
    server = Server(folder, folder / "models", SERVE_MAX_CONCURRENCY=str(PLACES), SERVE_WORKERS="2").wait_ready()
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
    with ThreadPoolExecutor(PLACES) as pool:
        assert {reply.status_code for reply in pool.map(lambda n: ask(running, n), range(PLACES))} == {200}
