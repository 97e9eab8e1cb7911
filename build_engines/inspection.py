"""`inspect` prints what a model is and was made from; `verify` compares its file with the fp32 model it came from."""

from collections.abc import Iterator
from pathlib import Path

from build_engines.comparison import Score, compare
from build_engines.errors import BuildError
from build_engines.model_folder.files import changed_files, digest, reference_folder
from build_engines.model_folder.spec import PLAN
from build_engines.model_folder.stored import StoredModel
from build_engines.runners import Runner, example_feed, latencies, onnx_runner, runner_of


def report(stored: StoredModel) -> Iterator[str]:
    """Yield the lines that `inspect` prints."""
    model, config = stored.model, stored.config
    size, groups = model.max_batch_size, config.instance_group
    batching = f"batches of up to {size}" if size else "no batches"
    instances = ", ".join(f"{group.count} × {group.Kind.Name(group.kind)}" for group in groups)
    yield f"model       {stored.folder.name} ({stored.folder})"
    yield f"client      {model.parameters.get('client') or 'none: it takes tensors'}"
    yield f"platform    {config.platform or config.backend or 'none'}, {batching}, {instances or 'instances by Triton'}"
    for title, specs in (("input", model.inputs), ("output", model.outputs)):
        yield from (f"{title:<11} {spec.name} {spec.datatype} {list(spec.shape)}" for spec in specs)
    files = [path for path in stored.folder.rglob("*") if path.is_file()]
    yield f"size        {sum(path.stat().st_size for path in files) / 1e6:.1f} MB in {len(files)} files"
    record = stored.record
    if not record:
        yield "built       not by this command (there is no build.json)"
        return
    made = record["made_from"]
    yield f"built       {made['model']} from {made['weights'] or 'its own weights'}, precision {record['precision']}"
    yield f"source      SHA-256 {record['source_sha256']}"
    if record["engine"]:
        yield f"engine      {', '.join(f'{key} {value}' for key, value in sorted(record['engine'].items()))}"
    if changed := changed_files(stored.folder, record):
        yield f"changed     since the build: {', '.join(changed)}"


def verify(stored: StoredModel, reference: Path | None, source: Path | None, count: int) -> list[Score]:
    """Return the scores of a built model against `reference`, by default the fp32 model that its build kept."""
    engine, fp32 = runner_of(stored), onnx_runner(reference or _reference(stored))
    scores = compare(stored.model, stored.client(), engine, fp32, count, source)
    return scores if stored.config.platform == PLAN else [*scores, _speed(stored, engine, fp32)]


def _speed(stored: StoredModel, engine: Runner, fp32: Runner) -> Score:
    feed = example_feed(stored.model, 1, length=128)
    theirs, ours = latencies([lambda: fp32(feed), lambda: engine(feed)])
    return Score("times as fast as fp32", theirs / ours, note=f"{ours:.2f} ms, fp32 {theirs:.2f} ms")


def _reference(stored: StoredModel) -> Path:
    source = stored.record.get("source_sha256", "")
    kept = reference_folder(source) / "model.onnx"
    for path in (kept, stored.version / "model.onnx"):
        if source and path.is_file() and digest(path) == source:
            return path
    if not source:
        raise BuildError(
            f"{stored.folder} was not built here (it has no build.json), so its fp32 model is not known; "
            "name it with --reference ONNX, or build it"
        )
    raise BuildError(
        f"the fp32 model that {stored.folder.name} was made from is not in {kept.parent}: build it again "
        "with --force, or name it with --reference ONNX"
    )
