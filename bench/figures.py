"""Figures computed from the samples: medians, ratios within one run, and the targets with their verdicts."""

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from bench.load import Sample
from bench.measure import Results
from bench.scenarios import FRONTS, WITH_OPENVINO
from bench.sessions import NAMES, OPENVINO

MEGABYTE = 2**20


@dataclass(frozen=True)
class Figure:
    """Medians over the rounds; each range is the lowest and the highest."""

    rate: float
    rate_range: tuple[float, float]
    p50: float
    p99: float
    p50_range: tuple[float, float]
    p99_range: tuple[float, float]
    errors: int
    cpu_ms: float


def figure(samples: Sequence[Sample]) -> Figure:
    """The figure of one peer in one scenario."""
    rates, p50, p99 = [s.rate for s in samples], [s.p50 for s in samples], [s.p99 for s in samples]
    return Figure(
        rate=statistics.median(rates),
        rate_range=(min(rates), max(rates)),
        p50=statistics.median(p50),
        p99=statistics.median(p99),
        p50_range=(min(p50), max(p50)),
        p99_range=(min(p99), max(p99)),
        errors=sum(s.errors for s in samples),
        cpu_ms=statistics.median(s.cpu_ms for s in samples),
    )


@dataclass(frozen=True)
class Target:
    """A target: at least `bound`, or at most. `measure` returns None when the run has no such figure; without the
    instruction set that it `needs` the figure is only reported."""

    text: str
    bound: float
    measure: Callable[[Results], float | None]
    at_most: bool = False
    unit: str = ""
    needs: str = ""

    def verdict(self, value: float | None, sets: Collection[str] = ()) -> str:
        """`sets`: the instruction sets of the processor."""
        if value is None:
            return "not measured"
        if self.needs and self.needs not in sets:
            return f"reported: no {self.needs} here"
        return "met" if (value <= self.bound if self.at_most else value >= self.bound) else "missed"


Pick = Callable[[Sample], float]
Measure = Callable[[Results], float | None]


def ratio(scenario: str, peer: str, pick: Pick) -> Measure:
    """Our figure / the peer's in the same scenario."""
    return lambda results: _ratio(results.samples.get(scenario, {}), "ours", peer, pick)


def _ratio(found: Mapping[str, list[Sample]], own: str, other: str, pick: Pick) -> float | None:
    """The median of the rounds' ratios, because a disturbance of a round hits both. None when one of them did not
    answer every request with 200."""
    if own not in found or other not in found:
        return None
    if any(sample.errors for sample in (*found[own], *found[other])):
        return None
    pairs = zip(found[own], found[other], strict=False)
    values = [pick(mine) / pick(theirs) for mine, theirs in pairs if pick(theirs)]
    return statistics.median(values) if values else None


def best_front(scenario: str, engine: str) -> Measure:
    """Our rate / the best rate of the other fronts. With an engine both have it; without one ours is what this project
    takes by itself, and theirs ONNX Runtime, as in their tutorials."""
    fronts = WITH_OPENVINO if engine == OPENVINO else FRONTS

    def measure(results: Results) -> float | None:
        found = results.samples.get(scenario, {})
        own = "ours" if not engine or f"ours-{engine}" not in found else f"ours-{engine}"
        best = _best(found, fronts)
        right = not engine or results.engines.get(scenario, {}).get(own) == NAMES[engine]
        return _ratio(found, own, best, _rate) if best and right else None

    return measure


def best_int8(scenarios: Sequence[str], fp32: str) -> Measure:
    """Our best INT8 rate / the best rate of the other fronts with fp32, as in their tutorials."""

    def measure(results: Results) -> float | None:
        theirs = results.samples.get(fp32, {})
        own = [figure(found["ours"]).rate for s in scenarios if "ours" in (found := results.samples.get(s, {}))]
        best = _best(theirs, FRONTS)
        return max(own) / figure(theirs[best]).rate if own and best else None

    return measure


def _best(found: Mapping[str, list[Sample]], names: Sequence[str]) -> str | None:
    """The fastest of these."""
    return max((name for name in names if name in found), key=lambda name: figure(found[name]).rate, default=None)


def _rate(found: Sample) -> float:
    return found.rate


def _p50(found: Sample) -> float:
    return found.p50


def _light_p99(found: Sample) -> float:
    return found.light_p99


def front_cost(scenario: str, without: Sequence[str] = ()) -> Measure:
    """Processor time per request of nginx and gunicorn, in milliseconds, without these stages (`bench profile` shows
    them)."""

    def measure(results: Results) -> float | None:
        samples = results.samples.get(scenario, {}).get("ours", [])
        stages = results.stages.get(scenario, {})
        own = [sum(ms for name, ms in s.parts.items() if name in FRONT) for s in samples]
        return statistics.median(own) - sum(stages.get(name, 0.0) for name in without) if own else None

    return measure


def decode_gain(results: Results) -> float | None:
    """The time to decode the image at full size / our time to decode it."""
    stages = results.stages.get("photo-12mp-1", {})
    return stages["whole_decode"] / stages["decode"] if stages.get("decode") else None


FRONT = ("nginx", "gunicorn", "python", "python3", "python3.11")


def _of_start(pick: Callable[[Results], Sequence[float]]) -> Callable[[Results], float | None]:
    return lambda results: statistics.median(values) if (values := pick(results)) else None


def _multi(pick: Callable[[Results], float]) -> Callable[[Results], float | None]:
    return lambda results: pick(results) if {"ours", "sagemaker"} <= results.multi_model.keys() else None


MODELS = (  # scenario, title, callers, bound against tutorials, bound of one caller's p50
    ("resnet50", "ResNet-50", 8, 2.5, 1.25),
    ("yolov5n", "YOLOv5n", 8, 1.5, 1.25),
    ("text-8", "embedding, 8 tokens", 16, 1.3, 2.0),
    ("text-128", "embedding, 128 tokens", 16, 2.0, 1.25),
)
AMX = "AMX"
TUTORIAL = "throughput / the best other front's as its tutorial runs (ONNX Runtime, fp32)"


def _models() -> list[Target]:
    targets = []
    for name, label, many, tutorial, alone in MODELS:
        crowd, text = f"{name}-{many}", f"{label}, {many} callers: throughput"
        targets += [
            Target(f"{label}, {many} callers: {TUTORIAL}", tutorial, best_front(crowd, ""), needs=AMX),
            *(
                Target(f"{text} / the best other front's, {title} in both", 1.0, best_front(crowd, engine))
                for engine, title in NAMES.items()
            ),
            Target(f"{text} / the limit's", 0.85, ratio(crowd, "limit", _rate)),
            Target(f"{label}, 1 caller: p50 / the limit's", alone, ratio(f"{name}-1", "limit", _p50), at_most=True),
        ]
    return targets


def _tensors() -> list[Target]:
    return [
        Target(
            f"{count} floats, {form}: requests per second / those of Triton's SageMaker endpoint",
            0.9,
            ratio(f"floats-{short}-{form}-8", "sagemaker", _rate),
        )
        for count, short in (("4", "4"), ("150,528", "150k"))
        for form in ("json", "binary")
    ]


TARGETS = (
    *_models(),
    Target(
        "ResNet-50 INT8, 8 callers: throughput / the best other front's fp32 as its tutorial runs",
        4.0,
        best_int8(("resnet50-int8-8", "resnet50-openvino-int8-8"), "resnet50-8"),
    ),
    *_tensors(),
    Target("Processor time in front of Triton per JPEG of 768×576, all in", 5.0, front_cost("resnet50-8"), True, "ms"),
    Target(
        "Processor time in front of Triton per short text, without its tokens and its answer",
        1.5,
        front_cost("text-8-16", ("decode", "preprocess", "postprocess")),
        at_most=True,
        unit="ms",
    ),
    Target("JPEG of 12 megapixels: whole decode / ours", 3.0, decode_gain),
    Target(
        "Short texts beside a busy YOLOv5n: p99 / Triton's", 2.0, ratio("saturated", "triton", _light_p99), at_most=True
    ),
    Target(
        "Start until /ping is 200, three bundled models",
        4.0,
        _of_start(lambda r: [s.ready for s in r.starts.get("ours", [])]),
        at_most=True,
        unit="s",
    ),
    Target(
        "Idle memory (PSS), three bundled models",
        600,
        _of_start(lambda r: [s.memory / MEGABYTE for s in r.starts.get("ours", [])]),
        at_most=True,
        unit="MB",
    ),
    Target(
        "Multi-model: seconds of a load / Triton's",
        1.3,
        _multi(lambda r: r.multi_model["ours"].load / r.multi_model["sagemaker"].load),
        at_most=True,
    ),
    Target(
        "Multi-model: p99 of calls while others load / alone",
        1.5,
        _multi(lambda r: r.multi_model["ours"].loading_p99 / r.multi_model["ours"].quiet_p99),
        at_most=True,
    ),
    Target(
        "Multi-model: memory per loaded model / Triton's",
        1.1,
        _multi(lambda r: r.multi_model["ours"].per_model / r.multi_model["sagemaker"].per_model),
        at_most=True,
    ),
)
