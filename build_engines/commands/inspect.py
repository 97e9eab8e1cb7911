"""`inspect`: a model's inputs and outputs, what it was made from, how fast it is here."""

import argparse
from collections.abc import Iterator

from build_engines.errors import BuildError
from build_engines.measurement.plan_runner import plan_latency
from build_engines.measurement.runners import Runner, runner_of
from build_engines.measurement.timing import example_feed, latency, threads
from build_engines.model_folder.record import changed_files
from build_engines.model_folder.spec import PLAN
from build_engines.model_folder.stored import StoredModel, open_model
from clients.base import TensorSpec


def run(parsed: argparse.Namespace) -> int:
    """Prints each line when it is known: measuring takes seconds."""
    for line in report(open_model(parsed.model, parsed.repository)):
        print(line, flush=True)
    return 0


def report(stored: StoredModel) -> Iterator[str]:
    """The lines that `inspect` prints."""
    model, config = stored.model, stored.config
    yield f"model       {stored.folder.name} ({stored.folder})"
    yield f"client      {model.parameters.get('client') or 'none: it takes tensors'}"
    yield f"platform    {config.platform or config.backend or 'none'}, {_batching(stored)}, {_instances(stored)}"
    for title, specs in (("input", model.inputs), ("output", model.outputs)):
        yield from (f"{title:<11} {_tensor(spec)}" for spec in specs)
    files = [path for path in stored.folder.rglob("*") if path.is_file()]
    yield f"size        {sum(path.stat().st_size for path in files) / 1e6:.1f} MB in {len(files)} files"
    yield from _fingerprint(stored)
    yield from _speed(stored)


def _batching(stored: StoredModel) -> str:
    size = stored.model.max_batch_size
    return f"batches of up to {size}" if size else "no batches"


def _instances(stored: StoredModel) -> str:
    groups = stored.config.instance_group
    return ", ".join(f"{group.count} × {group.Kind.Name(group.kind)}" for group in groups) or "Triton's own instances"


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.datatype} {list(spec.shape)}"


def _fingerprint(stored: StoredModel) -> Iterator[str]:
    record = stored.record
    if not record:
        yield "built       not by this command (there is no build.json)"
        return
    made = record["made_from"]
    yield f"built       {made['model']} from {made['weights']}, precision {record['precision']}"
    yield f"source      SHA-256 {record['source_sha256']}"
    if record["engine"]:
        yield f"engine      {', '.join(f'{key} {value}' for key, value in sorted(record['engine'].items()))}"
    if changed := changed_files(stored.folder, record):
        yield f"changed     since the build: {', '.join(changed)}"


def _speed(stored: StoredModel) -> Iterator[str]:
    try:
        run = runner_of(stored)
        where = "on the GPU" if stored.config.platform == PLAN else f"{threads()} threads, in process"
        for batch in sorted({1, min(8, stored.model.max_batch_size or 1)}):
            milliseconds = measure(stored, run, batch)
            yield (
                f"speed       batch {batch}: {milliseconds:.2f} ms, {batch / milliseconds * 1e3:.0f} per second "
                f"({where})"
            )
    except BuildError as err:
        yield f"speed       not measured: {err}"


def measure(stored: StoredModel, run: Runner, batch: int) -> float:
    """Milliseconds of one run on random tensors."""
    feed = example_feed(stored.model, batch)
    if stored.config.platform == PLAN:
        return plan_latency(stored.file, feed)
    return latency(lambda: run(feed))
