"""One run: starts every peer, then measures each scenario in rounds in which the peers take turns (A B C A B C)."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import engines, environments, repository
from bench.limit import Limit
from bench.load import Sample, Wrong, percentile
from bench.multimodel import MultiModel, multi_model
from bench.peer_table import PEERS, Peer
from bench.repository import CACHE, Unprepared
from bench.scenarios import EMBEDDING, OPEN_SHARE, WITH_OPENVINO, Driven, Scenario, Scope
from bench.servers import LOOSE, TOLERANCE, Server
from bench.sessions import OPENVINO
from bench.workload import Workload, images, tensor, text

STAGED = 5  # requests of a single caller, to measure the stages
Say = Callable[[str], None]
Answers = dict[str, list[tuple[Workload, Any]]]  # by engine, one for each work of a scenario


@dataclass
class Start:
    """Seconds until ready and until each model has answered; bytes of memory after that."""

    ready: float
    answered: float
    memory: int


@dataclass
class Results:
    """Samples by scenario and peer, and what was measured once; `missing` says why a peer has none."""

    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    engines: dict[str, dict[str, str]] = field(default_factory=dict)  # by scenario and peer
    choice: str = ""  # the engine that this project takes by itself, and why
    settings: dict[str, str] = field(default_factory=dict)  # {scenario: the limit's best setting}
    starts: dict[str, list[Start]] = field(default_factory=dict)
    loaded: dict[str, int] = field(default_factory=dict)  # bytes after the first scenario of several models
    missing: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)  # {"scenario, peer": its wrong answer}
    stages: dict[str, dict[str, float]] = field(default_factory=dict)  # {scenario: our milliseconds by stage}
    multi_model: dict[str, MultiModel] = field(default_factory=dict)


def run(scope: Scope, say: Say) -> Results:
    """Runs everything; Unprepared when our server cannot be measured."""
    asked = {model for scenario in scope.scenarios for model in scenario.models}
    models = repository.prepare({*asked, *scope.bundled}, CACHE / "repository")
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        bench = Run(scope, say, models, Path(name))
        bench.leave_out_the_engine_of_its_own_choice()
        bench.install()
        bench.measure_starts()
        for group in scope.groups():
            with bench.started(group):
                for scenario in group:
                    bench.go_round(scenario)
        if scope.archives:
            say("multi-model archives")
            bench.results.multi_model = multi_model(scope.archives, scope.calls, bench.scratch)
    return bench.results


@dataclass
class Run:
    """The state of one run; a server that fails is left out from then on."""

    scope: Scope
    say: Say
    models: Path
    scratch: Path
    results: Results = field(default_factory=Results)
    servers: list[Server] = field(default_factory=list)
    _limits: list[Limit] = field(default_factory=list)

    @property
    def peers(self) -> list[Peer]:
        """The peers of the scope that are not missing."""
        return [peer for peer in PEERS if peer.name in self.scope.peers and peer.name not in self.results.missing]

    @property
    def limit(self) -> Limit:
        return self._limits[0]

    @property
    def ours(self) -> Server:
        return next(server for server in self.servers if server.peer.name == "ours")

    def leave_out_the_engine_of_its_own_choice(self) -> None:
        """This project with that engine is there already."""
        choice = engines.own_choice()
        self.results.choice = str(choice)
        if (name := f"ours-{choice.engine}") in self.scope.peers:
            self.results.missing[name] = "`this project` takes this engine by itself here"

    def install(self) -> None:
        """Installs the environments that are missing or have other versions."""
        for peer in self.peers:
            if not environments.is_current(peer.environment):
                self.say(f"installing {peer.title}")
                with self._missing(peer, "it cannot be installed: "):
                    environments.install(peer.environment)

    @contextmanager
    def _missing(self, peer: Peer, what: str = "") -> Iterator[None]:
        """Notes why a peer has no figures; raises for our server, without which there is nothing to compare."""
        try:
            yield
        except Unprepared as err:
            if peer.name == "ours":
                raise
            self.results.missing[peer.name] = f"{what}{err}"

    def measure_starts(self) -> None:
        """Starts each peer with the bundled models, if it can serve them all, and ends it again. Other fronts start in
        the same way with either engine."""
        for number in range(self.scope.starts):
            for peer in self.peers:
                if peer.name not in ("sagemaker", *WITH_OPENVINO, *EMBEDDING):
                    self.say(f"start {number + 1} of {peer.name}")
                    with self._missing(peer):
                        self._one_start(peer)

    def _one_start(self, peer: Peer) -> None:
        server = Server(peer, self.models, self.scope.bundled, self.scratch)
        try:
            server.wait([probe(model) for model in self.scope.bundled])
            start = Start(server.started, server.answered, server.memory())
            self.results.starts.setdefault(peer.name, []).append(start)
        finally:
            server.end()

    @contextmanager
    def started(self, group: Sequence[Scenario]) -> Iterator[None]:
        """Starts the limit and the servers of these scenarios with their models, and pauses the servers; notes the
        memory of those with several models at the end."""
        models = sorted(group[0].models)
        with ExitStack() as stack:
            self._limits, self.servers = [Limit(self.models)], []
            stack.callback(self.limit.end)
            for peer in self.peers:
                if any(peer.name in scenario.peers for scenario in group):
                    self.say(f"starting {peer.name} with {', '.join(models)}")
                    with self._missing(peer):
                        server = Server(peer, self.models, models, self.scratch)
                        stack.callback(server.end)
                        server.wait([probe(model) for model in models]).hold()
                        self.servers.append(server)
            yield
            for server in self.servers if len(models) > 1 else ():
                self.results.loaded.setdefault(server.peer.name, server.memory())

    def go_round(self, scenario: Scenario) -> None:
        """The rounds of one scenario; without figures for a server whose answers differ from the limit's."""
        works = scenario.works()
        answers = self._answers(works)
        servers = [s for s in self.servers if s.peer.name in scenario.peers and self._is_right(scenario, answers, s)]
        rate, seconds = self._open_rate(scenario), self.scope.seconds * scenario.longer
        for number in range(self.scope.rounds):
            self.say(f"{scenario.name}, round {number + 1}")
            if "limit" in scenario.peers:
                self._note(scenario, "limit", scenario.drive(Driven(self.limit), works, seconds))
                self.results.settings[scenario.name] = self.limit.setting
                self._note_engine(scenario, "limit", self.limit.setting.partition(",")[0])
            for server in servers:
                self._note_engine(scenario, server.peer.name, engines.title(self._engine(server, works[0])))
                with server.awake(), self._wrong(scenario, server):
                    self._note(scenario, server.peer.name, scenario.drive(Driven(server, rate), works, seconds))
        for server in servers:
            if not self._is_right(scenario, answers, server):
                self.results.samples.get(scenario.name, {}).pop(server.peer.name, None)
        self._note_stages(scenario, works[0])

    def _answers(self, works: Sequence[Workload]) -> Answers:
        """What the engines in process answer."""
        return {
            engine: [(work, self.limit.predict(work, engine)) for work in works]
            for engine in {self._engine(server, work) for server in self.servers for work in works}
        }

    def _engine(self, server: Server, work: Workload) -> str:
        return server.peer.engine_of(self.models / work.model)

    def _note_engine(self, scenario: Scenario, name: str, engine: str) -> None:
        self.results.engines.setdefault(scenario.name, {})[name] = engine

    def _note(self, scenario: Scenario, name: str, found: Sample) -> None:
        self.results.samples.setdefault(scenario.name, {}).setdefault(name, []).append(found)

    def _is_right(self, scenario: Scenario, answers: Answers, server: Server) -> bool:
        with server.awake(), self._wrong(scenario, server):
            for number, work in enumerate(scenario.works()):
                engine = self._engine(server, work)
                tolerance = LOOSE if engine == OPENVINO and engines.has_bf16() else TOLERANCE
                server.check(*answers[engine][number], tolerance)
        return f"{scenario.name}, {server.peer.name}" not in self.results.wrong

    @contextmanager
    def _wrong(self, scenario: Scenario, server: Server) -> Iterator[None]:
        """Notes a server's wrong answer."""
        try:
            yield
        except Wrong as err:
            self.results.wrong[f"{scenario.name}, {server.peer.name}"] = str(err)

    def _open_rate(self, scenario: Scenario) -> float:
        """Requests per second for an open loop."""
        samples = self.results.samples.get(scenario.rate_of, {}).get("limit", [])
        return OPEN_SHARE * percentile([sample.rate for sample in samples], 0.5)

    def _note_stages(self, scenario: Scenario, work: Workload) -> None:
        """Notes the stages of a single request to our server (the median of a few), and the time to decode the image at
        full size."""
        with self.ours.awake():
            found = [stages(self.ours, work) for _ in range(STAGED)]
        names = dict.fromkeys(name for each in found for name in each)
        middle = {name: percentile([each.get(name, 0.0) for each in found], 0.5) for name in names}
        if work.media_type.startswith("image/"):
            middle["whole_decode"] = 1000 * self.limit.decode_seconds(work)
        self.results.stages[scenario.name] = middle


def probe(model: str) -> Workload:
    """The first request to a model of a server that has just started."""
    return {"bert": text(8), "mean": tensor(4)}.get(model) or images(model)


def stages(server: Server, work: Workload) -> dict[str, float]:
    """Milliseconds by stage from Server-Timing; `total` is measured by the caller."""
    request = server.peer.request(work)
    if request is None:
        return {}
    begun = time.monotonic()
    _, _, headers = server.ask(request)
    total = 1000 * (time.monotonic() - begun)
    parts = (part.strip().split(";dur=") for part in headers.get("server-timing", "").split(",") if ";dur=" in part)
    return {name: float(value) for name, value in parts} | {"total": total}
