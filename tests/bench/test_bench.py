"""Tests that the benchmarks run, compare answers before they measure, and report a server that
fails instead of its figures."""

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.__main__ import gist, is_same, row, summary
from bench.load import Round, message, run_round
from bench.scenarios import Scenario, scenarios
from bench.servers import PEERS, Server, alone
from tests.support.harness import PATIENCE, ROOT, wait_until
from tests.support.started import ends_with

pytestmark = pytest.mark.stack


def run(words: str, *options: str, timeout: float, **variables: str) -> str:
    """Run a benchmark's program with these environment variables, and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", *words.split(), *options],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_run_two_scenarios_against_the_bare_server_and_triton(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    options = f"--servers ours bare triton --rounds 1 --seconds 1 --out {page} --scenarios"
    scenarios = ["photo, 1", "4 floats as JSON, version"]
    models = {"SERVE_LOAD_MODELS": "efficientnet,mean"}
    run(f"bench {options}", *scenarios, timeout=2 * PATIENCE, **models)
    summary, photo, floats, _memory = page.read_text().split("### ")
    assert [line.count(" |") for line in summary.splitlines() if "|" in line] == [9, 9, 9, 9]
    assert [line.split()[1] for line in photo.splitlines()[4:] if line] == ["ours", "bare", "limit"]
    assert [line.split()[1] for line in floats.splitlines()[4:] if line] == [
        "ours",
        "bare",
        "triton",
    ]
    assert "not 200" not in page.read_text()


ON_DEMAND = "bench.on_demand --archives 6 --room 3 --callers 2 --seconds 4"


def test_measure_on_demand_mode() -> None:
    output = run(f"{ON_DEMAND} --usage", timeout=4 * PATIENCE)
    loaded, hits, churn, _, misses, *usage, counts = output.splitlines()
    assert " right" in loaded and hits.startswith("  hits: p50 ")
    assert " right after a load" in churn and misses.startswith("  misses: p50 ")
    assert "after a load" not in loaded and "wrong" not in output
    names = [row.split("|")[1].strip() for row in usage[2:]]
    assert names[:2] == ["memory", "threads"] and names[-1] == "unpacked archives"
    words = ("loads", "hits", "misses", "evictions", "thrash")
    assert re.fullmatch(", ".join(rf"{word} \d+" for word in words), counts)


def test_measure_a_simulated_multi_model_endpoint() -> None:
    output = run(f"{ON_DEMAND} --simulator", timeout=4 * PATIENCE)
    loaded, _, churn, _, counts, _rules = output.splitlines()
    assert " right" in loaded and " right" in churn
    assert "wrong" not in output and " 400" not in output
    assert re.search(r"\d+ loads", counts)


def test_take_the_steps_of_the_gpu_benchmark_on_a_processor() -> None:
    """The program exits with 1 if an answer differs, or if unloading a model does not free its
    memory."""
    output = run("bench.gpu --kind KIND_CPU --small --seconds 1", timeout=4 * PATIENCE)
    assert re.search(r"photos for 16 callers: [1-9]\d*/s", output)
    assert output.splitlines()[-1] == "1048576 GiB: 507; the next call: 200"


def test_print_no_figures_for_a_row_with_a_failed_answer() -> None:
    failed, good = Round(100.0, 1.0, 2.0, errors=3), Round(50.0, 1.0, 2.0, errors=0)
    assert "100.0" not in row("peer", [failed], [good])
    assert "| 0.50 " in row("peer", [good], [Round(100.0, 1.0, 2.0, 0)])


def test_leave_a_cell_of_the_summary_blank_without_a_figure() -> None:
    slow, fast = Round(50.0, 1.0, 2.0, 0), Round(100.0, 1.0, 2.0, 0)
    failing = replace(fast, errors=3)
    text, photo = (Scenario(name, 1, FLOATS.requests) for name in ("text", "photo"))
    waits = replace(photo, name="open loop", share=0.5)
    lines = summary(
        {
            text: {"ours": [slow], "litserve": [fast], "infinity": [fast]},
            photo: {"ours": [slow], "litserve": [failing]},
            waits: {"ours": [slow], "litserve": [fast]},
        }
    )
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[0] for row in cells[2:]] == ["Text", "Photo", "Open loop"]
    assert [row[1] for row in cells[2:]] == ["50.0", "50.0", "50.0"]
    assert cells[0][-2:] == ["litserve", "infinity"]
    assert [row[-2:] for row in cells[2:]] == [["2.00", "2.00"], ["", ""], ["", ""]]


def test_lock_the_engine_of_this_project_for_all_peers() -> None:
    engine = re.compile(r"^onnxruntime==[\d.]+", re.MULTILINE)
    expected = engine.findall((ROOT / "requirements" / "serving.lock").read_text())
    locks = [ROOT / "bench" / "peers" / f"{peer}.lock" for peer in PEERS]
    assert [engine.findall(lock.read_text()) for lock in locks] == [expected] * len(PEERS)


def test_send_a_text_to_an_embeddings_api_and_no_photo() -> None:
    server = Server("infinity", "openai", 80, [])
    chosen = {each.name for each in scenarios() if server.supports(each)}
    assert "text of 8 tokens, 1 caller" in chosen and "photo, 1 caller" not in chosen
    short = next(each for each in scenarios() if each.name == "text of 8 tokens, 1 caller")
    head, _, body = message(server, short.requests[0]).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /embeddings HTTP/1.1\r\n")
    assert json.loads(body) == {"model": "bert", "input": "A man is eating food."}
    answer = {"object": "list", "data": [{"object": "embedding", "embedding": [0.05]}]}
    assert gist(answer) == [0.05]


def test_compare_answers_by_best_label_or_first_numbers() -> None:
    assert gist({"predictions": [{"classes": [{"label": "cup"}, {"label": "mug"}]}]}) == "cup"
    assert gist({"predictions": []}) is None
    assert is_same("cup", "cup") and not is_same("mug", "cup")
    expected = gist({"embedding": [0.05, -0.02, 0.01]})
    assert is_same([0.052, -0.021, 0.009], expected)
    assert not is_same([0.06, -0.02, 0.01], expected)
    assert not is_same("cup", expected)


@pytest.fixture
def witness() -> Iterator[tuple[Server, list[psutil.Process], list[list[str]]]]:
    """Yield a server in this process, the other servers that it watches, and their states at each
    request. It refuses every fourth request."""
    peers: list[psutil.Process] = []
    states: list[list[str]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            states.append([process.status() for process in peers])
            self.send_response(200 if len(states) % 4 else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield Server("witness", "ours", http.server_port, []), peers, states
    http.shutdown()
    http.server_close()


@pytest.fixture
def peer() -> Iterator[Server]:
    """Yield a server that consists of a process and its child."""
    code = "import subprocess; subprocess.run(['sleep', '600'])"
    process = psutil.Popen([sys.executable, "-c", code])
    ends_with(process.kill)
    wait_until(process.children, "the peer has a child")
    yield Server("peer", "ours", 0, [process])
    for each in (*process.children(), process):
        each.kill()
    process.wait()


FLOATS = next(each for each in scenarios() if each.name == "4 floats as JSON, 8 callers")


def test_stop_the_other_servers_while_one_is_measured(witness: Any, peer: Server) -> None:
    server, peers, states = witness
    peers += [*peer.processes, *peer.processes[0].children()]
    other = Scenario("other", 1, FLOATS.requests)
    with alone(server, [server, peer]):
        run_round(server, other, 1)
    assert len(states) > 1
    assert {state for each in states for state in each} == {psutil.STATUS_STOPPED}
    assert len(states[0]) == 2
    assert psutil.STATUS_STOPPED not in {process.status() for process in peers}


def test_send_an_open_loop_at_its_rate_and_count_refusals(witness: Any) -> None:
    server, _, states = witness
    done = run_round(server, replace(FLOATS, share=0.5), 1, rate=40)
    assert len(states) == 40
    assert (done.refused, done.errors) == (10, 0)
    assert "| 10 |" in row("witness", [done], [done])


def test_send_the_requests_of_a_scenario_in_turns() -> None:
    mixed = next(each for each in scenarios() if "4 short texts" in each.name)
    counts = Counter(request.model for request in mixed.requests)
    assert counts == {"efficientnet": 8, "yolov4_tiny": 1, "bert": 4}
    server = Server("ours", "ours", 80, [])
    messages = {message(server, request) for request in mixed.requests}
    assert len(messages) == len(counts)
    assert all(text.startswith(b"POST /invocations?model_name=") for text in messages)
