"""Figures computed from the samples: medians, ratios within one run, and the targets with their verdicts."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.load import Sample
from bench.measure import Results

OTHERS = ("litserve", "bentoml", "rayserve", "mlserver")
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
    """A target: at least `bound`, or at most. `measure` returns None when the run has no such figure."""

    text: str
    bound: float
    measure: Callable[[Results], float | None]
    at_most: bool = False
    unit: str = ""

    def verdict(self, value: float | None) -> str:
        if value is None:
            return "not measured"
        return "met" if (value <= self.bound if self.at_most else value >= self.bound) else "missed"


Pick = Callable[[Sample], float]


def ratio(scenario: str, peer: str, pick: Pick) -> Callable[[Results], float | None]:
    """Our figure / the peer's: the median of the rounds' ratios, because a disturbance of a round hits both. None when
    one of them did not answer every request with 200."""

    def measure(results: Results) -> float | None:
        found = results.samples.get(scenario, {})
        if "ours" not in found or peer not in found:
            return None
        if any(sample.errors for sample in (*found["ours"], *found[peer])):
            return None
        pairs = zip(found["ours"], found[peer], strict=True)
        values = [pick(own) / pick(other) for own, other in pairs if pick(other)]
        return statistics.median(values) if values else None

    return measure


def best_other(scenario: str, own_scenario: str) -> Callable[[Results], float | None]:
    """Our rate in one scenario / the best rate of the other fronts in another."""

    def measure(results: Results) -> float | None:
        own = results.samples.get(own_scenario, {}).get("ours")
        theirs = [found for name, found in results.samples.get(scenario, {}).items() if name in OTHERS]
        return figure(own).rate / max(figure(f).rate for f in theirs) if own and theirs else None

    return measure


def _rate(found: Sample) -> float:
    return found.rate


def _p50(found: Sample) -> float:
    return found.p50


def _light_p99(found: Sample) -> float:
    return found.light_p99


def _front_cost(scenario: str) -> Callable[[Results], float | None]:
    """Processor time per request of nginx and gunicorn, in milliseconds, without decoding, preprocessing and
    postprocessing (`bench profile` shows the stages)."""

    def measure(results: Results) -> float | None:
        samples = results.samples.get(scenario, {}).get("ours", [])
        stages = results.stages.get(scenario, {})
        own = [sum(ms for name, ms in s.parts.items() if name in FRONT) for s in samples]
        work = sum(stages.get(name, 0.0) for name in ("decode", "preprocess", "postprocess"))
        return statistics.median(own) - work if own and stages else None

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


MODELS = (
    ("resnet50", "ResNet-50", 8),
    ("yolov5n", "YOLOv5n", 8),
    ("text-8", "embedding, 8 tokens", 16),
    ("text-128", "embedding, 128 tokens", 16),
)


def _models() -> list[Target]:
    targets = []
    for name, label, many in MODELS:
        targets += [
            Target(f"{label}, {many} callers: throughput / the limit's", 1.0, ratio(f"{name}-{many}", "limit", _rate)),
            Target(f"{label}, 1 caller: p50 / the limit's", 1.1, ratio(f"{name}-1", "limit", _p50), at_most=True),
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
        "ResNet-50 INT8, 8 callers: throughput / the best other front's fp32",
        2.5,
        best_other("resnet50-8", "resnet50-int8-8"),
    ),
    *_tensors(),
    Target("The front's own processor time per image", 1.5, _front_cost("resnet50-8"), at_most=True, unit="ms"),
    Target("The front's own processor time per text", 1.5, _front_cost("text-8-16"), at_most=True, unit="ms"),
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
