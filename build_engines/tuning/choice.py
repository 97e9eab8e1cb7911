"""The candidates of `tune`, their figures, the choice among them, and how it is written."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2

from build_engines.model_folder.config import HEADER, difference, render
from build_engines.model_folder.record import save_record
from build_engines.model_folder.stored import StoredModel
from build_engines.weights.digests import digest
from serving.repository.engines import NAMES, PARAMETER
from serving.repository.layout import CONFIG
from serving.repository.model_config import read_file

CLOSE = 0.03  # figures that differ by less are the same
MOST_INSTANCES = 8
UNTUNED = ".untuned"  # what the first configuration is kept as
ALONE, TOGETHER, AT_ONCE = "each alone", "one run", "at once"
SEPARATE = {TOGETHER: "0", AT_ONCE: "1"}  # parameter separate_runs


@dataclass(frozen=True)
class Candidate:
    """One configuration: `threads` of a run, 0 for the machine's; `merged` says how waiting requests are run; a request
    waits `delay` microseconds for others. `engine` is written only where a start would not choose it by itself."""

    instances: int
    threads: int
    merged: str
    delay: int = 0
    engine: str = ""

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}" if self.threads else "all threads"
        delay = f", {self.delay} µs delay" if self.delay else ""
        engine = f", {NAMES[self.engine]}" if self.engine else ""
        return f"{self.instances} instance{'s' * (self.instances > 1)}, {threads}, {self.merged}{delay}{engine}"

    def applied(self, config: Any) -> Any:
        """A copy of the ModelConfig with this candidate's values; everything else is kept."""
        made = model_config_pb2.ModelConfig()
        made.CopyFrom(config)
        group = made.instance_group[0] if made.instance_group else made.instance_group.add()
        group.count, group.kind = self.instances, group.KIND_CPU
        del made.instance_group[1:]
        made.ClearField("dynamic_batching")
        if self.merged != ALONE:
            made.dynamic_batching.SetInParent()
            made.dynamic_batching.MergeFrom(config.dynamic_batching)
            made.dynamic_batching.max_queue_delay_microseconds = self.delay
        values = {"intra_op_thread_count": str(self.threads or ""), "separate_runs": SEPARATE.get(self.merged, "")}
        if self.engine:
            values[PARAMETER] = self.engine
        for name, value in values.items():
            made.parameters.pop(name, None)
            if value:
                made.parameters[name].string_value = value
        return made


@dataclass(frozen=True)
class Figures:
    """Milliseconds of the median for the fewer callers; requests per second and milliseconds of the 99th percentile
    for the more; megabytes of the backend's processes."""

    latency: float
    throughput: float
    p99: float
    memory: float

    @staticmethod
    def best(figures: "list[Figures]") -> "Figures":
        """The better value of each of one candidate's figures."""
        return Figures(
            latency=min(f.latency for f in figures),
            throughput=max(f.throughput for f in figures),
            p99=min(f.p99 for f in figures),
            memory=max(f.memory for f in figures),
        )


def candidates(processors: int, engines: Sequence[str] = ("",)) -> list[Candidate]:
    """Instances in powers of two, each with all threads or a share; waiting requests run alone or merged. So for the
    first of the engines ("": the one that a start chooses); of another, one instance and two."""
    first, *others = engines
    found = [replace(each, engine=first) for each in _of_an_engine(processors)]
    few = [each for each in found if each.instances <= 2 and each.merged != AT_ONCE and not each.delay]
    return found + [replace(each, engine=other) for other in others for each in few]


def _of_an_engine(processors: int) -> list[Candidate]:
    counts = [2**n for n in range(MOST_INSTANCES.bit_length()) if 2**n <= min(processors, MOST_INSTANCES)]
    shares = [(count, share) for count in counts for share in dict.fromkeys((0, processors // count * (count > 1)))]
    found = [Candidate(count, share, merged) for count, share in shares for merged in (TOGETHER, ALONE)]
    at_once = [Candidate(1, 0, AT_ONCE)] if processors > 1 else []
    return [*found, *at_once, Candidate(1, 0, TOGETHER, delay=500)]


def choose(found: Mapping[Candidate, Figures]) -> Candidate:
    """Keeps the candidates within 3 % of the highest throughput, of these those within 3 % of the lowest latency, and
    returns the one with the least memory."""
    throughput = max(f.throughput for f in found.values())
    fast = {c: f for c, f in found.items() if f.throughput >= (1 - CLOSE) * throughput}
    latency = min(f.latency for f in fast.values())
    quick = [c for c, f in fast.items() if f.latency <= (1 + CLOSE) * latency]
    return min(quick, key=lambda c: fast[c].memory)


def table(found: Mapping[Candidate, Figures], limit: Figures, callers: tuple[int, int]) -> Iterator[str]:
    """Lines with each candidate's figures and, in brackets, their ratios to ONNX Runtime in process."""
    few, many = (f"{count} caller{'s' * (count > 1)}" for count in callers)
    yield f"{'':<51} {few + ', p50':>19} {many + ', per second':>23} {'p99':>8} {'memory':>9}"
    for candidate, f in found.items():
        yield (
            f"{candidate!s:<51} {f.latency:>9.2f} ms ({f.latency / limit.latency:.2f}) {f.throughput:>16.1f} "
            f"({f.throughput / limit.throughput:.2f}) {f.p99:>5.0f} ms {f.memory:>6.0f} MB"
        )
    best = "ONNX Runtime in process, at its best"
    yield f"{best:<51} {limit.latency:>9.2f} ms (1.00) {limit.throughput:>16.1f} (1.00)"


def write(stored: StoredModel, chosen: Candidate) -> Path:
    """Writes the choice into the configuration that this machine uses; returns the kept copy of the first one.

    build.json takes the new file's SHA-256, so that `build` finds the model up to date.
    """
    file = stored.config_file
    before = file.with_name(file.name + UNTUNED)
    if not before.exists():
        shutil.copyfile(file, before)
    comments = "".join(f"{line}\n" for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    config = chosen.applied(stored.config)
    if file != stored.folder / CONFIG:
        config = difference(read_file(stored.folder / CONFIG), config)
    text = render(config).removeprefix(HEADER)
    file.write_text(comments + text, encoding="utf-8")
    name = str(file.relative_to(stored.folder))
    if name in stored.record.get("files", ()):
        record = stored.record | {"files": stored.record["files"] | {name: digest(file)}}
        save_record(stored.folder, record)
    return before
