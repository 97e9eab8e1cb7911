"""What nobody waits for any more is not worked on: seen in Triton's own counts."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.support.harness import ONE_INSTANCE, SLEEPER, SLEEPER_CLIENT, Server, wait_until

pytestmark = pytest.mark.stack

TIMEOUT, SECONDS, CALLERS = 3, 1.0, 20
POLICY = "default_queue_policy { max_queue_size: 1 }"
CONFIG = (
    'backend: "python"\nmax_batch_size: 1\ndynamic_batching { %s }\n'
    'input { name: "seconds" data_type: TYPE_FP32 dims: [1] }\n'
    'output { name: "slept" data_type: TYPE_FP32 dims: [1] }\n'
)


def make_queued(repository: Path, name: str, policy: str = "") -> None:
    """The sleeper, one request at a time, with the queue of a dynamic batcher."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1/model.py").write_text(SLEEPER.replace("np.array([seconds]", "np.array([[seconds]]"))
    (folder / "client.py").write_text(SLEEPER_CLIENT)
    (folder / "config.pbtxt").write_text(CONFIG % policy + ONE_INSTANCE)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its callers wait for TIMEOUT seconds."""
    folder = tmp_path_factory.mktemp("deadlines")
    make_queued(folder / "repository", "queued")
    make_queued(folder / "repository", "narrow", POLICY)
    running = Server(folder, folder / "repository", SERVE_REQUEST_TIMEOUT=str(TIMEOUT)).wait_ready()
    yield running
    assert running.stop() == 0


def ask(server: Server, *seconds: float, model: str = "queued") -> requests.Response:
    return server.post(json={"model_name": model, "instances": seconds})


def executions(server: Server) -> int:
    stats = server.get("/v2/models/queued/stats").json()
    return int(stats["model_stats"][0]["execution_count"])


def test_requests_that_were_given_up_in_the_queue_are_not_executed(slow: Server) -> None:
    before = executions(slow)
    with ThreadPoolExecutor(CALLERS) as pool:
        replies = list(pool.map(lambda _: ask(slow, SECONDS), range(CALLERS)))
    answered = [reply for reply in replies if reply.status_code == 200]
    late = {(reply.status_code, reply.json()["code"]) for reply in replies if reply not in answered}
    assert 1 <= len(answered) <= CALLERS // 2
    assert late <= {(504, "triton_timeout"), (504, "timeout")}
    wait_idle(slow)
    assert executions(slow) - before <= CALLERS // 2


def wait_idle(server: Server) -> None:
    """A request that is answered came after all that Triton still had, and that is counted."""
    wait_until(lambda: ask(server, 0).status_code == 200, "Triton has nothing more to do")


def test_a_call_that_takes_too_long_is_a_504(slow: Server) -> None:
    reply = ask(slow, TIMEOUT + 1)
    assert (reply.status_code, reply.json()["code"]) == (504, "triton_timeout")
    assert "in time" in reply.json()["error"] and "SERVE_REQUEST_TIMEOUT" in reply.json()["error"]


def test_the_instances_after_the_deadline_are_not_sent(slow: Server) -> None:
    before = executions(slow)
    reply = ask(slow, *[SECONDS] * CALLERS)
    assert reply.status_code == 504
    wait_idle(slow)
    assert executions(slow) - before <= CALLERS // 2


def test_what_the_model_s_queue_policy_refuses_may_come_again(slow: Server) -> None:
    with ThreadPoolExecutor(CALLERS) as pool:
        replies = list(pool.map(lambda _: ask(slow, SECONDS, model="narrow"), range(CALLERS)))
    refused = [reply for reply in replies if reply.status_code == 503]
    assert refused and len(refused) < CALLERS
    for reply in refused:
        assert (reply.json()["code"], reply.headers["Retry-After"]) == ("overloaded", "1")
        assert "Exceeds maximum queue size: the queue policy" in reply.json()["error"]
