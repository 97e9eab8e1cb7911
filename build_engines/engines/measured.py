"""The engine and the precision that are fastest on this machine's processor and keep the accuracy: `--for auto`.

    1/model.onnx, INT8 for either engine --compare, time--> the fastest that passes --> 1/model.onnx, parameters

Each way runs in a process of its own, all in turns. An INT8 file must be clearly faster: it is for processors only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from build_engines.engines.calibration import client_of, model_of
from build_engines.engines.onnx_runtime import FASTER
from build_engines.engines.quantization import quantized
from build_engines.errors import BuildError, UsageError
from build_engines.measurement import comparison, timing
from build_engines.measurement.comparison import Score
from build_engines.measurement.isolated import HINT, IsolatedRunner, Way, latencies
from build_engines.model_folder.spec import ONNX, Engine, ModelSpec
from build_engines.request import Request
from serving.host.machine import processor_features
from serving.host.tritonserver import backend_directory
from serving.repository.engines import AUTO, ONNX_RUNTIME, OPENVINO, PARAMETER, Processor, choose, this_processor

FP32, BF16, INT8 = "fp32", "bf16", "int8"
LENGTH = 128  # tokens of a text, at most
TELLING = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")  # features that decide the speed


@dataclass(frozen=True)
class Candidate:
    """A file, and how it is run."""

    precision: str
    way: Way
    file: Path

    def __str__(self) -> str:
        return f"{self.way.engine} {self.precision}"


@dataclass(frozen=True)
class Result:
    """`scores` compare it with fp32 by ONNX Runtime."""

    candidate: Candidate
    milliseconds: float
    scores: Sequence[Score]

    @property
    def passed(self) -> bool:
        return all(score.passed for score in self.scores)


def build(model_spec: ModelSpec, folder: Path, request: Request) -> Engine:
    """Leaves 1/model.onnx in the precision that was chosen; prints the table."""
    if model_spec.platform != ONNX:
        raise UsageError("engines are measured for ONNX files: export the model as one, or leave --for out")
    here, reference = this_processor(backend_directory()), folder / "1" / "model.onnx"
    results = measure(list(_candidates(model_spec, folder, request, here)), model_spec, folder)
    for line in table(results):
        print(line, flush=True)
    best = fastest(results)
    print(f"fastest here: {best}", flush=True)
    for file in {result.candidate.file for result in results} - {best.file, reference}:
        file.unlink()
    best.file.replace(reference)
    return Engine(ONNX, best.precision, cpu_only=best.precision == INT8, cpu_parameters=parameters(best, here))


def bound_to() -> dict[str, str]:
    """What decides the choice."""
    return {"processor": " ".join(name for name in TELLING if name in processor_features())}


def _candidates(model_spec: ModelSpec, folder: Path, request: Request, here: Processor) -> Iterator[Candidate]:
    """What this machine can run; ONNX Runtime in fp32 first."""
    reference = folder / "1" / "model.onnx"
    engines = [ONNX_RUNTIME] if here.obstacle else [ONNX_RUNTIME, OPENVINO]
    yield Candidate(FP32, Way(ONNX_RUNTIME), reference)
    if OPENVINO in engines:
        yield Candidate(FP32, Way(OPENVINO, "f32"), reference)
        if here.bf16:
            yield Candidate(BF16, Way(OPENVINO, "bf16"), reference)
    if request.precision == FP32:
        return
    for engine in engines:
        try:
            yield Candidate(INT8, Way(engine), quantized(model_spec, folder, request, engine))
        except BuildError as err:
            print(f"no INT8 for {engine}: {err}", flush=True)


def measure(candidates: Sequence[Candidate], model_spec: ModelSpec, folder: Path) -> list[Result]:
    """All in turns, one instance or row at a time."""
    described, client = model_of(model_spec, folder), client_of(model_spec, folder)
    feed = timing.example_feed(described, batch=1, length=min(model_spec.lengths[1], LENGTH))
    runners = [IsolatedRunner(candidate.file, candidate.way) for candidate in candidates]
    try:
        times = latencies(runners, feed)
        scores = [comparison.compare(described, client, runner, runners[0]) for runner in runners[1:]]
    finally:
        for runner in runners:
            runner.close()
    return [Result(*each) for each in zip(candidates, times, [[], *scores], strict=True)]


def table(results: Sequence[Result]) -> Iterator[str]:
    """A line for each, with its speed against the first."""
    for result in results:
        scores = "; ".join(map(str, result.scores)) or "what the others are compared with"
        ratio = results[0].milliseconds / result.milliseconds
        yield f"{result.candidate!s:<18} {result.milliseconds:>8.2f} ms {ratio:>6.2f}x  {scores}"


def fastest(results: Sequence[Result]) -> Candidate:
    """Of those that pass; INT8 where it is clearly faster than all others."""
    passed = [result for result in results if result.passed]
    best = min((result for result in passed if result.candidate.precision != INT8), key=lambda r: r.milliseconds)
    int8 = [result for result in passed if result.candidate.precision == INT8]
    smaller = min(int8, key=lambda result: result.milliseconds, default=best)
    return (smaller if best.milliseconds >= FASTER * smaller.milliseconds else best).candidate


def parameters(best: Candidate, here: Processor) -> Mapping[str, str]:
    """What configs/cpu.pbtxt says of it. What a start chooses by itself is left open, as other machines differ; a file
    that was made for one engine is not."""
    engine = best.way.engine
    own = choose(AUTO, AUTO, here)
    left_open = own is not None and own.engine == engine and best.precision != INT8
    hint = {HINT: "f32"} if here.bf16 and engine == OPENVINO and best.precision == FP32 else {}
    return {PARAMETER: AUTO if left_open else engine} | hint
