"""Compares the predictions of an engine with those of the fp32 model that it was built from, for
`verify` and for builds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from build_engines.build_record import digest_of_version, reference_folder
from build_engines.errors import BuildError, explained
from build_engines.families.find_family import family_of
from build_engines.measures import Measure, cosine
from build_engines.runners import (
    OnnxFile,
    Runner,
    client_outputs,
    example_feed,
    model_feed,
    runner_of,
)
from build_engines.stored_model import StoredModel
from clients.base import Model, ModelClient, Tensors
from serving.clients import source_of
from serving.codecs import Limits
from serving.model_status.served_model import ServedModel

TENSOR_COSINE = 0.99  # the minimum cosine similarity of two outputs that match


@dataclass(frozen=True)
class Score:
    """A measured `value`, the lowest value that passes (`limit`), and a `note` that says on which
    samples or tensors it was measured."""

    name: str
    value: float
    limit: float
    note: str

    @property
    def passed(self) -> bool:
        return self.value >= self.limit

    def __str__(self) -> str:
        limit = f"limit {self.limit:.4f}"
        if not self.passed:
            limit += ", FAILED"
        return f"{self.name} {self.value:.4f} ({limit}), {self.note}"


def verify(
    stored: StoredModel, reference: Path | None, source: Path | None, count: int
) -> list[Score]:
    """Compare a built model with `reference`, and return the scores. The default reference is the
    fp32 model that the build kept in the cache or, if the model's own file is still the fp32 file,
    that file. `source` and `count` select the samples, as in `compare`. Raise BuildError if there
    is no reference, or if one of the models cannot be run."""
    if not reference:
        reference = _find_reference(stored)
    engine, fp32 = runner_of(stored), OnnxFile(reference)
    return compare(stored.model, stored.client(), engine, fp32, count, source)


def _find_reference(stored: StoredModel) -> Path:
    sha256 = stored.record.get("source_sha256", "")
    cached = reference_folder(sha256) / "model.onnx"
    for path in (cached, stored.version / "model.onnx"):
        if path.is_file() and digest_of_version(path.parent) == sha256:
            return path
    raise BuildError(
        f"the fp32 model that {stored.folder.name} was made from is not in {cached.parent}: build "
        "it again with --force, or name it with --reference ONNX"
    )


def compare(
    model: Model,
    client: ModelClient | None,
    engine: Runner,
    reference: Runner,
    count: int = 0,
    source: Path | None = None,
    held_out: bool | None = None,
) -> list[Score]:
    """Return the scores of `engine` against `reference`, on at most `count` (0: all) of the samples
    in `source`. `held_out` has the same meaning as in Samples.read.

    Without `source`, text models are compared on built-in sentences, and image models on their
    example. Models with a client of the user's own are always compared on their example. Tabular
    models and models without a client are always compared on random tensors.
    """
    # None if there is no client, or if it is the user's own
    family = family_of(source_of(client)) if client else None
    samples = family.samples if family else None
    if client is None or (family and not samples):
        feed = example_feed(model, min(4, model.max_batch_size))
        return compare_tensors(feed, engine, reference, "random input")
    instances: Iterator[Any] | None = None
    if samples and source:
        instances = samples.read(client, source, held_out)
    elif samples and samples.built_in:
        instances = samples.built_in(client)
    if instances is not None and family and family.measure:
        first = list(islice(instances, count or None))
        return [_score_of(client, family.measure(client), engine, reference, first, source)]
    example = client.codec.from_bytes(ServedModel(model, client).example(), Limits())
    feed = model_feed(model, _prepared(client, example))
    return compare_tensors(feed, engine, reference, "the model's example")


def _score_of(
    client: ModelClient,
    measure: Measure,
    engine: Runner,
    reference: Runner,
    instances: Sequence[Any],
    source: Path | None,
) -> Score:
    """Return the mean similarity of the predictions that `engine` and `reference` make for each
    instance. Raise BuildError if neither detects anything in any instance."""
    ours = [_predict(client, engine, instance) for instance in instances]
    theirs = [_predict(client, reference, instance) for instance in instances]
    similarities = map(measure.similarity, ours, theirs)
    known = [similarity for similarity in similarities if similarity is not None]
    if not known:
        raise BuildError(
            f"fp32 finds nothing in {len(instances)} images of {source}: name images with "
            "objects; a build takes these with --no-compare"
        )
    mean = float(np.mean(known))
    return Score(measure.name, mean, measure.limit, f"{len(instances)} samples")


def compare_tensors(feed: Tensors, engine: Runner, reference: Runner, note: str) -> list[Score]:
    """Run both runners on `feed`. Return a score for each output: the mean cosine similarity of the
    rows that the two runners return for it."""
    ours, theirs = _run(engine, feed), _run(reference, feed)
    return [
        Score(
            f"cosine of '{name}'",
            cosine(np.atleast_2d(ours[name]), np.atleast_2d(array)),
            TENSOR_COSINE,
            note,
        )
        for name, array in theirs.items()
    ]


def _predict(client: ModelClient, run: Runner, instance: Any) -> Any:
    """Run the model with `run`, and return the client's prediction with default parameters."""
    inputs = _prepared(client, instance)
    outputs = _run(run, model_feed(client.model, inputs))
    rows = client_outputs(client.model, outputs)
    (prediction,) = client.postprocess(rows, inputs, [instance], client.read_parameters({}))
    return prediction


def _prepared(client: ModelClient, instance: Any) -> Tensors:
    return client.prepare([instance], client.defaults)


def _run(run: Runner, feed: Tensors) -> Tensors:
    with explained("the model fails on a sample"):
        return run(feed)
