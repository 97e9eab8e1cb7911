"""The columns that a trained model of a table takes: their names, their datatypes, the categories that it knows."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from build_engines.errors import UsageError


@dataclass(frozen=True)
class Column:
    """`name` is "" where columns have none; `values` are the categories that the model knows, () for numbers."""

    name: str
    datatype: str = "FP32"
    values: tuple[Any, ...] = ()


def columns_of(estimator: Any) -> list[Column]:
    """By the names that it was trained with, and by the categories that its encoders know."""
    names = _names(estimator)
    known: dict[int, tuple[str, tuple[Any, ...]]] = {}
    first = _first(estimator)
    if hasattr(first, "transformers_"):
        places = first._transformer_to_input_indices
        for name, transformer, _ in first.transformers_:
            known |= dict(zip(places[name], _encoded(transformer), strict=False))
    else:
        known |= dict(enumerate(_encoded(first)))
    return [Column(name, *known.get(place, ())) for place, name in enumerate(names)]


def _names(estimator: Any) -> list[str]:
    """One for each column, "" where they have none."""
    booster = booster_of(estimator)
    if type(booster).__module__.startswith("xgboost"):
        return list(booster.feature_names or [""] * booster.num_features())
    if hasattr(booster, "num_feature"):  # LightGBM's, which names columns Column_0 … where they had no names
        found = booster.feature_name()
        return [""] * len(found) if all(re.fullmatch(r"Column_\d+", name) for name in found) else list(found)
    count = int(getattr(estimator, "n_features_in_", 0))
    if not count:
        raise UsageError(f"a {type(estimator).__name__} that is not trained, or not on rows, cannot be served")
    return [str(name) for name in getattr(estimator, "feature_names_in_", [""] * count)]


def _encoded(transformer: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The datatype and the categories of each column, of an encoder that comes first or behind another step."""
    steps = [step for _, step in transformer.steps] if hasattr(transformer, "steps") else [transformer]
    encoder = next((step for step in steps if hasattr(step, "categories_")), None)
    for categories in getattr(encoder, "categories_", ()):
        kind = categories.dtype.kind
        datatype = "BYTES" if kind in "OSU" else "INT64" if kind in "iu" else "FP32"
        yield datatype, tuple(categories.tolist())


def are_apart(columns: Sequence[Column], estimator: Any) -> bool:
    """Whether each column is an input of its own: types differ, or a step takes columns by their names."""
    first = _first(estimator)
    return len({column.datatype for column in columns}) > 1 or (
        hasattr(first, "transformers_") and all(column.name for column in columns)
    )


def _first(estimator: Any) -> Any:
    """The first step of a pipeline."""
    return estimator.steps[0][1] if hasattr(estimator, "steps") else estimator


def booster_of(estimator: Any) -> Any:
    """XGBoost's or LightGBM's Booster within; another estimator itself."""
    if hasattr(estimator, "get_booster"):
        return estimator.get_booster()
    return getattr(estimator, "booster_", estimator)
