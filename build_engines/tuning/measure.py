"""How many instances, threads and requests per run serve an ONNX model best on this machine's processors.

    candidates --real tritonserver--> Figures of each --choose--> the configuration that this machine uses

Each candidate answers one caller and several, one row per request, in two rounds in which the candidates take turns.
The better round counts, because a disturbance can only make a machine slower.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median

import tritonclient.grpc as grpcclient
from google.protobuf import json_format
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from build_engines.errors import BuildError
from build_engines.measurement import comparison
from build_engines.measurement.isolated import IsolatedRunner, Way
from build_engines.measurement.runners import onnx_runner
from build_engines.measurement.timing import example_feed, threads
from build_engines.model_folder.spec import ONNX
from build_engines.model_folder.stored import StoredModel
from build_engines.progress import over
from build_engines.tuning.choice import Candidate, Figures
from build_engines.tuning.tritonserver import Triton, started
from clients.base import Tensors
from serving.host import tritonserver
from serving.repository.engines import NAMES, ONNX_RUNTIME, OPENVINO, Engines
from serving.settings.table import Settings

ENGINES = Engines(Settings(device="cpu"), tritonserver.backend_directory())
LENGTH = 128  # of a dimension that varies: the tokens of a text
ROUNDS, WARM_UP_SECONDS, SECONDS = 2, 0.3, 1.0  # of a candidate, for each number of callers


def check(stored: StoredModel) -> None:
    """BuildError, with what to do, for a model whose serving cannot be tuned here."""
    name, config = stored.folder.name, stored.config
    if config.platform != ONNX:
        raise BuildError(
            f"{name} is of platform '{config.platform or config.backend}', and tune knows ONNX on a CPU: "
            "a TensorRT plan's batches are chosen by `build --preferred-batch-sizes`"
        )
    if any(group.kind == group.KIND_GPU for group in config.instance_group):
        raise BuildError(f"{name} is configured for a GPU here, and tune knows processors: run it where there is none")
    if not config.max_batch_size or config.HasField("sequence_batching"):
        why = "serves sequences" if config.max_batch_size else "has max_batch_size 0"
        raise BuildError(
            f"{name} {why}, so requests cannot share a run: choose its instances by hand "
            "(instance_group.count, parameters intra_op_thread_count)"
        )
    _ = stored.file  # BuildError without weights


def engines(stored: StoredModel) -> list[str]:
    """Those that are measured: "" for the one that a start chooses, then the other. OpenVINO is left out where its BF16
    does not keep the accuracy."""
    _, choice = ENGINES.fitted(stored.config)
    own = choice.engine if choice else ONNX_RUNTIME
    found = {own: "", **{name: name for name in NAMES if name != own}}
    if ENGINES.here.obstacle or (ENGINES.here.bf16 and not keeps_accuracy(stored)):
        found = {ONNX_RUNTIME: found[ONNX_RUNTIME]}
    return list(found.values())


def keeps_accuracy(stored: StoredModel) -> bool:
    """Whether OpenVINO, as it serves here, answers as ONNX Runtime, by the limits of `verify`; prints the scores."""
    engine, reference = (IsolatedRunner(stored.file, Way(name)) for name in (OPENVINO, ONNX_RUNTIME))
    with closing(engine), closing(reference):
        scores = comparison.compare(stored.model, stored.client(), engine, reference)
    print(f"{NAMES[OPENVINO]} against {NAMES[ONNX_RUNTIME]}: {'; '.join(map(str, scores))}")
    return all(score.passed for score in scores)


def measure(stored: StoredModel, candidates: Sequence[Candidate], callers: tuple[int, int]) -> dict[Candidate, Figures]:
    """The figures of each candidate, for both numbers of callers."""
    feed = example_feed(stored.model, 1, LENGTH)
    found: dict[Candidate, list[Figures]] = {candidate: [] for candidate in candidates}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / stored.folder.name).symlink_to(stored.folder.resolve())
        with started(Path(folder)) as triton:
            for candidate in over(list(candidates) * ROUNDS, "measuring"):
                found[candidate].append(_measured(triton, stored, candidate, feed, callers))
    return {candidate: Figures.best(figures) for candidate, figures in found.items()}


def _measured(
    triton: Triton, stored: StoredModel, candidate: Candidate, feed: Tensors, callers: tuple[int, int]
) -> Figures:
    name, (config, _) = stored.folder.name, ENGINES.fitted(candidate.applied(stored.config))
    try:
        triton.client.load_model(name, config=json.dumps(json_format.MessageToDict(config)))
        ask = _asker(triton, name, feed)
        few, many = (_load(ask, count) for count in callers)
        return Figures(latency=few[0], throughput=many[1], p99=many[2], memory=triton.backend_megabytes())
    except InferenceServerException as err:
        raise BuildError(f"{name} with {candidate}: {err.message()}") from err


def _asker(triton: Triton, name: str, feed: Tensors) -> Callable[[], object]:
    inputs = []
    for tensor, array in feed.items():
        inputs.append(grpcclient.InferInput(tensor, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    return lambda: triton.client.infer(name, inputs)


def _load(run: Callable[[], object], callers: int) -> tuple[float, float, float]:
    """(median ms, requests per second, 99th percentile in ms) of a closed loop."""
    _closed_loop(run, callers, WARM_UP_SECONDS)
    begun = time.perf_counter()
    taken = sorted(_closed_loop(run, callers, SECONDS))
    rate = len(taken) / (time.perf_counter() - begun)
    return median(taken) * 1e3, rate, taken[int(0.99 * len(taken))] * 1e3


def _closed_loop(run: Callable[[], object], callers: int, seconds: float) -> list[float]:
    end = time.perf_counter() + seconds
    with ThreadPoolExecutor(callers) as pool:
        return [taken for each in pool.map(lambda _: list(_calls(run, end)), range(callers)) for taken in each]


def _calls(run: Callable[[], object], end: float) -> Iterator[float]:
    """The seconds that each call takes, one after another; at least one call."""
    while True:
        started = time.perf_counter()
        run()
        yield time.perf_counter() - started
        if time.perf_counter() >= end:
            return


def in_process(stored: StoredModel) -> Figures:
    """ONNX Runtime without a server: the lower latency and the higher throughput of two ways, one run at a time on all
    threads and one run per thread."""
    feed = example_feed(stored.model, 1, LENGTH)
    loads = []
    for at_once in sorted({1, threads()}):
        run = onnx_runner(stored.file, max(1, threads() // at_once))
        loads += [_load(lambda run=run: run(feed), count) for count in (1, at_once)]  # type: ignore[misc]
    return Figures(
        latency=min(p50 for p50, _, _ in loads), throughput=max(rate for _, rate, _ in loads), p99=0.0, memory=0.0
    )
