"""The bench works: on the smallest run it has, with the real servers, for working and not for figures."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from bench import curves, engines, figures, machine, report, scenarios
from bench.environments import WITH_TORCH, lock_of
from bench.limit import Limit
from bench.load import Sample, Wrong, corrected, percentile, sample
from bench.measure import Results, Start
from bench.peer_table import PEERS, Peer
from bench.peers.context import Context
from bench.peers.context import Start as Command
from bench.peers.limit import best, closed_loop
from bench.repository import Unprepared, prepare
from bench.servers import LOOSE, Server, alike
from bench.sessions import ONNX_RUNTIME, OPENVINO
from bench.subject import Subject
from bench.workload import Request, images, instances_json, tensor, text
from tests.support.harness import ROOT, wait_until
from tests.support.started import starts_a_server

MARK = secrets.token_hex(8)


@pytest.fixture(scope="module")
@starts_a_server
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `python -m bench tiny` writes."""
    target = tmp_path_factory.mktemp("bench") / "page.md"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "tiny", "--out", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"BENCH_TEST": MARK},
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_a_tiny_run_measures_every_server_without_an_error(page: Path) -> None:
    results = json.loads((page.with_suffix("") / "results.json").read_text())["results"]
    assert results["missing"] == {} and results["wrong"] == {}
    for scenario in scenarios.TINY.scenarios:
        found = results["samples"][scenario.name]
        assert set(found) == set(scenario.peers) & set(scenarios.TINY.peers)
        assert all(s["replies"] > 0 and s["errors"] == 0 for samples in found.values() for s in samples)


def test_the_page_has_a_table_for_each_scenario_and_each_target(page: Path) -> None:
    text = page.read_text()
    assert all(f"## {scenario.title}\n" in text for scenario in scenarios.TINY.scenarios)
    assert all(target.text in text for target in figures.TARGETS)
    assert f"| this project | {engines.title(engines.own_choice().engine)} |" in text and "| the limit |" in text
    assert f"| instruction sets | {', '.join(machine.instruction_sets())} |" in text


def test_a_tiny_run_leaves_no_process(page: Path) -> None:
    assert [entry for entry in Path("/proc").glob("[0-9]*") if MARK.encode() in _environ(entry)] == []


def _environ(entry: Path) -> bytes:
    try:
        return (entry / "environ").read_bytes()
    except OSError:
        return b""


def test_a_wrong_command_is_a_usage_error() -> None:
    command = [sys.executable, "-m", "bench", "run", "--scenarios", "nonsense"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "nonsense" in done.stderr and "Traceback" not in done.stderr


def test_every_peer_has_its_versions_pinned() -> None:
    for peer in PEERS:
        if peer.environment:
            lock = lock_of(peer.environment).read_text()
            assert all("==" in line for line in lock.splitlines() if line and not line.startswith("#"))


def test_no_environment_installs_cuda() -> None:
    locks = {peer.environment: lock_of(peer.environment).read_text() for peer in PEERS if peer.environment}
    assert not [name for name, lock in locks.items() if "cuda" in lock or "\ntorch==" in lock]
    assert all(f"\n{needs}==" in locks[name] for name in WITH_TORCH for needs in ("sympy", "networkx", "jinja2"))


@pytest.mark.parametrize(("package", "own"), [(ONNX_RUNTIME, "serving"), (OPENVINO, "artifacts")])
def test_every_peer_runs_the_engine_that_serves(package: str, own: str) -> None:
    peers = {peer.environment for peer in PEERS if peer.environment and peer.engine == package}
    locks = [*map(lock_of, peers), ROOT / f"requirements/{own}.lock"]
    found = [
        line.split()[0] for lock in locks for line in lock.read_text().splitlines() if line.startswith(f"{package}==")
    ]
    assert len(found) == len(locks) and len(set(found)) == 1


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_takes_what_the_scenarios_that_name_it_ask(peer: Peer) -> None:
    for scenario in scenarios.SCENARIOS:
        if peer.name in scenario.peers:
            assert peer.request(scenario.works()[0]) is not None, scenario.name


def test_texts_have_the_tokens_that_their_names_say() -> None:
    from clients._text.tokenizer import TextTokenizer

    tokenizer = TextTokenizer(ROOT / "model_repository/bert/tokenizer", 0)
    for count in (8, 128):
        encoded = tokenizer.encode([text(count).instances[0].decode()], 1)
        assert encoded["input_ids"].shape == (1, count)


def test_a_subject_answers_raw_and_json_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepare(["bert", "mean"], tmp_path)
    monkeypatch.setenv("BENCH_REPOSITORY", str(folder))
    bert, work = Subject(folder / "bert"), text(8)
    assert alike(bert.predict(work.instances), bert.predict_json(instances_json(work)))
    mean = Subject(folder / "mean").predict_json(instances_json(tensor(4)))
    assert alike(mean, [[float(tensor(4).tensor.mean())]])  # type: ignore[union-attr]
    assert closed_loop(bert, work.instances, callers=2, at_once=1, seconds=0.05).replies >= 2
    assert best("bert", work.instances, 1)[2] == 1


@starts_a_server
def test_the_engines_of_the_limit_answer_alike(tmp_path: Path) -> None:
    limit = Limit(prepare(["bert"], tmp_path))
    try:
        assert alike(limit.predict(text(8), OPENVINO), limit.predict(text(8), ONNX_RUNTIME), LOOSE)
    finally:
        limit.end()


def test_the_limit_takes_callers_in_the_order_in_which_they_ask() -> None:
    class Slow:
        def predict(self, bodies: Sequence[bytes]) -> list[object]:
            time.sleep(0.005)
            return []

    found = closed_loop(Slow(), (), callers=8, at_once=2, seconds=0.2)  # type: ignore[arg-type]
    assert found.p50 >= 4 * 5  # a caller who is not overtaken waits for three pairs before its own


def test_servers_that_run_at_the_same_time_are_asked_the_same_models() -> None:
    groups = scenarios.FULL.groups()
    assert [scenario for group in groups for scenario in group] == list(scenarios.SCENARIOS)
    assert all(len({scenario.models for scenario in group}) == 1 for group in groups)


def test_pictures_of_a_workload_differ_and_stay_the_same() -> None:
    first, second = images("resnet50", 2).instances
    assert first != second and images("resnet50", 2).instances == (first, second)


def test_percentiles_and_rates() -> None:
    found = sample([0.010] * 98 + [0.5] * 2, seconds=10, errors=0)
    assert (found.rate, found.p50, found.p99) == (10.0, 10.0, 500.0)
    assert percentile([], 0.5) == 0.0


def test_a_long_wait_stands_for_the_callers_that_would_have_come() -> None:
    assert corrected([0.1, 0.1], 0.1) == [0.1, 0.1]
    assert corrected([0.5], 0.1) == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1])


def test_answers_are_alike_up_to_the_last_digits() -> None:
    assert alike({"score": 0.12345, "more": 1}, {"score": 0.12346})
    assert not alike({"score": 0.2}, {"score": 0.1})
    assert not alike([], [1.0])
    assert not alike({"label": "a"}, {"label": "b"})


def test_a_ratio_is_taken_within_each_round() -> None:
    fast, slow = Sample(200, 1.0, 5.0, 9.0), Sample(100, 1.0, 10.0, 20.0)
    results = Results(samples={"resnet50-8": {"ours": [fast, slow], "limit": [fast, slow]}})
    assert figures.ratio("resnet50-8", "limit", lambda s: s.rate)(results) == 1.0
    assert figures.ratio("resnet50-8", "triton", lambda s: s.rate)(results) is None


def test_a_peer_with_fewer_fields_is_compared_by_those() -> None:
    infinity, litserve = (next(peer for peer in PEERS if peer.name == name) for name in ("infinity", "litserve"))
    predicted = [{"embedding": [0.5, 1.0], "tokens": 8}]
    found = infinity.predictions(b'{"data": [{"object": "embedding", "embedding": [0.5, 1.0]}]}')
    assert alike(found, infinity.expected(predicted)) and not alike(found, litserve.expected(predicted))
    assert not alike(infinity.predictions(b'{"data": [{"embedding": [0.5, 0.9]}]}'), infinity.expected(predicted))


def _ran(rate: int) -> list[Sample]:
    return [Sample(rate, 1.0, 5.0, 9.0)]


def test_fronts_are_compared_as_their_tutorials_run_and_with_the_same_engine() -> None:
    rates = {"ours": 60, "ours-openvino": 90, "litserve": 30, "mlserver": 40, "mlserver-openvino": 100}
    results = Results(
        samples={"resnet50-8": {name: _ran(rate) for name, rate in rates.items()}},
        engines={"resnet50-8": {"ours": "ONNX Runtime", "ours-openvino": "OpenVINO"}},
    )
    assert figures.best_front("resnet50-8", "")(results) == 1.5
    assert figures.best_front("resnet50-8", ONNX_RUNTIME)(results) == 1.5
    assert figures.best_front("resnet50-8", OPENVINO)(results) == 0.9
    results.samples["int8-8"] = {"ours": _ran(160)}
    assert figures.best_int8(("int8-8", "none-8"), "resnet50-8")(results) == 4.0
    results.engines["resnet50-8"] = {"ours": "OpenVINO"}
    del results.samples["resnet50-8"]["ours-openvino"]
    assert figures.best_front("resnet50-8", OPENVINO)(results) == 0.6
    assert figures.best_front("resnet50-8", ONNX_RUNTIME)(results) is None


def test_a_front_for_embeddings_is_another_front_where_texts_are_asked() -> None:
    rates = {"ours": 60, "litserve": 30, "infinity": 40}
    results = Results(samples={"text-8-16": {name: _ran(rate) for name, rate in rates.items()}})
    assert figures.best_front("text-8-16", "")(results) == 1.5
    asked = {scenario.name for scenario in scenarios.SCENARIOS if "infinity" in scenario.peers}
    assert asked == {"text-8-1", "text-8-16", "text-128-1", "text-128-16"}


def test_a_target_of_amx_is_only_reported_elsewhere() -> None:
    target = next(t for t in figures.TARGETS if t.needs == "AMX")
    assert target.verdict(1.0, ["AVX512"]) == "reported: no AMX here"
    assert target.verdict(1.0, ["AMX"]) == "missed"


def test_a_target_says_met_missed_or_not_measured() -> None:
    target = next(t for t in figures.TARGETS if t.unit == "s")
    assert target.verdict(target.measure(Results())) == "not measured"
    assert target.verdict(target.measure(Results(starts={"ours": [Start(3.0, 4.0, 1)]}))) == "met"
    assert target.verdict(target.measure(Results(starts={"ours": [Start(5.0, 6.0, 1)]}))) == "missed"


def test_a_peer_that_cannot_run_is_named_with_the_reason() -> None:
    results = Results(samples={}, missing={"mlserver": "it cannot be installed: no wheel"})
    lines = list(report.lines(results, scenarios.QUICK, "python -m bench quick", Path("quick.md"), []))
    assert any("MLServer" in line and "no wheel" in line for line in lines)


@starts_a_server
def _peer(*command: str) -> Peer:
    """A server of no use: it answers every POST with 501."""
    given = command or ("-m", "http.server", "--bind", "127.0.0.1")

    def start(context: Context) -> Command:
        return Command((sys.executable, *given, str(context.port)))

    return Peer("useless", "useless", "", start, "/", lambda _: Request("/", b"{}", {}), lambda _: [])


def test_a_server_that_answers_with_errors_has_no_figures(tmp_path: Path) -> None:
    server = Server(_peer(), tmp_path, ("mean",), tmp_path)
    try:
        server.wait([])
        with pytest.raises(Wrong, match="501"):
            server.check(tensor(4), [[0.5]])
        found = server.closed(tensor(4), callers=2, seconds=1)
        assert found.errors >= found.replies > 0
    finally:
        server.end()
    results = Results(samples={"resnet50-8": {"ours": [found], "limit": [found]}})
    assert figures.ratio("resnet50-8", "limit", lambda s: s.rate)(results) is None


def test_a_server_that_is_held_takes_no_processor_time_and_answers_again(tmp_path: Path) -> None:
    server = Server(_peer(), tmp_path, ("mean",), tmp_path)
    try:
        server.wait([]).hold()
        wait_until(
            lambda: {psutil.Process(pid).status() for pid in server.pids()} == {psutil.STATUS_STOPPED},
            "its processes are held",
        )
        with server.awake():
            assert server.ask(Request("/", b"{}", {}))[0] == 501
        assert server.memory() > 0
    finally:
        server.end()
    assert server.pids() in ([], [server.process.pid])


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    server = Server(_peer("-c", "raise SystemExit('no such model')"), tmp_path, ("mean",), tmp_path)
    with pytest.raises(Unprepared, match="no such model"):
        server.wait([])
    server.end()


def test_a_page_of_curves_shows_those_that_were_measured() -> None:
    points = [asdict(curves.Point(callers, 40.0, 25.0, 30.0, 3)) for callers in (1, 8)]
    found = {"callers-image": {"ours": points, "triton": points}, "models": {"ours": {"1": 100.2}}}
    text = "\n".join(curves.lines(found, "page"))
    assert "| 8 | 40.0 | 25.00 | 30.00 | 3 | 40.0 |" in text and "| 1 | 100 |" in text
    assert text.count("## ") == text.count("![") == 2


def test_a_curve_that_there_is_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unprepared, match="no curve is called depth; the curves are size-binary"):
        curves.curves(tmp_path, tmp_path / "page.md", ["depth"])
