"""Trained models of scikit-learn, XGBoost and LightGBM -> ONNX, by skl2onnx and onnxmltools."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from build_engines.errors import BuildError, UsageError, first_line
from build_engines.families import table_graph
from build_engines.families.table_comparison import AGREEING, Column, agreement, check
from clients.base import TensorSpec

OPSETS = {"": 17, table_graph.ML: 3}  # the newest that all of skl2onnx's operators have; Triton 23.01 runs them
MATRIX = "X"


@dataclass(frozen=True)
class Converted:
    """The mended graph, the columns' names (none where they have none), the classes, whether cells may be empty."""

    model: onnx.ModelProto
    columns: tuple[str, ...]
    classes: tuple[table_graph.Class, ...]
    missing: bool


def convert(estimator: Any, inputs: Sequence[TensorSpec] = ()) -> Converted:
    """`inputs` are the user's own, a column each; without them they follow from the model. Raises BuildError."""
    library = type(estimator).__module__.partition(".")[0]
    _check_kind(estimator, library)
    estimator = _best(estimator)
    columns = [Column(spec.name, spec.datatype) for spec in inputs] or columns_of(estimator)
    try:
        model = _CONVERTERS.get(library, _sklearn)(estimator, columns)
    except Exception as err:  # the converters' errors have no common base class
        raise BuildError(
            f"a {type(estimator).__name__} cannot be converted to ONNX: {first_line(err)}; where the types of the "
            "columns are the reason, name each column in its order: --input NAME:FP32:1, NAME:BYTES:1 for strings"
        ) from err
    classes = table_graph.mend(model) or np.asarray(getattr(estimator, "classes_", ())).tolist()
    if not _has_probabilities(estimator):
        table_graph.rename_output(model, "prob", "scores")
    check(estimator, model, columns)
    missing = _takes_missing(estimator) and agreement(estimator, model, columns, missing=True) >= AGREEING
    if are_apart(columns, estimator) and all(column.name for column in columns):
        columns = [columns[place] for place in table_graph.drop_unused_inputs(model)]
    return Converted(model, tuple(column.name for column in columns if column.name), tuple(classes), missing)


def _check_kind(estimator: Any, library: str) -> None:
    """Raises UsageError for what is no model, or one that maps its categories outside of its trees."""
    if library not in _CONVERTERS and not hasattr(estimator, "__sklearn_tags__"):
        name = type(estimator).__name__
        raise UsageError(f"the file holds a {name}, and no model of scikit-learn, XGBoost or LightGBM")
    booster = booster_of(estimator)
    categories = "c" in (getattr(booster, "feature_types", None) or ()) or getattr(booster, "pandas_categorical", None)
    if categories:
        raise UsageError(
            "the model has categorical columns, which its converter does not know: train it on codes or on columns "
            "of scikit-learn's OneHotEncoder, in a pipeline"
        )


def _best(estimator: Any) -> Any:
    """With the trees up to the best one, which XGBoost's own predict takes after early stopping."""
    booster = booster_of(estimator)
    if not type(booster).__module__.startswith("xgboost") or not (best := booster.attr("best_iteration")):
        return estimator
    cut = booster[: int(best) + 1]
    if booster is estimator:
        return cut
    estimator._Booster = cut
    return estimator


def _sklearn(estimator: Any, columns: Sequence[Column]) -> onnx.ModelProto:
    from skl2onnx import to_onnx
    from skl2onnx.common import data_types

    _register_boosters()
    types = {
        "FP32": data_types.FloatTensorType,
        "FP64": data_types.DoubleTensorType,
        "INT64": data_types.Int64TensorType,
        "BYTES": data_types.StringTensorType,
        "BOOL": data_types.BooleanTensorType,
    }
    if are_apart(columns, estimator):
        initial = [(c.name or f"column_{place}", types[c.datatype]([None, 1])) for place, c in enumerate(columns)]
    else:
        initial = [(MATRIX, types[columns[0].datatype]([None, len(columns)]))]
    return to_onnx(estimator, initial_types=initial, target_opset=OPSETS)


def _register_boosters() -> None:
    """As steps of a pipeline they are known to skl2onnx once onnxmltools' converters are named to it."""
    import lightgbm
    import xgboost
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
    from skl2onnx import update_registered_converter
    from skl2onnx.common import shape_calculator as shapes

    classifier, regressor = (
        shapes.calculate_linear_classifier_output_shapes,
        shapes.calculate_linear_regressor_output_shapes,
    )
    options = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
    for model, shape, converter, given in (
        (xgboost.XGBClassifier, classifier, convert_xgboost, options),
        (xgboost.XGBRegressor, regressor, convert_xgboost, None),
        (lightgbm.LGBMClassifier, classifier, convert_lightgbm, options),
        (lightgbm.LGBMRegressor, regressor, convert_lightgbm, {"split": None}),
    ):
        library = model.__module__.partition(".")[0]
        alias = f"{'XGBoost' if library == 'xgboost' else 'LightGbm'}{model.__name__}"
        update_registered_converter(model, alias, shape, converter, options=given, overwrite=True)


def _booster(estimator: Any, columns: Sequence[Column]) -> onnx.ModelProto:
    """onnxmltools knows XGBoost's columns as f0, f1 … only."""
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    initial = [(MATRIX, FloatTensorType([None, len(columns)]))]
    if type(estimator).__module__.startswith("lightgbm"):
        return onnxmltools.convert_lightgbm(estimator, initial_types=initial)
    booster = booster_of(estimator)
    names, booster.feature_names = booster.feature_names, None
    try:
        return onnxmltools.convert_xgboost(estimator, initial_types=initial)
    finally:
        booster.feature_names = names


_CONVERTERS: Mapping[str, Callable[[Any, Sequence[Column]], onnx.ModelProto]] = {
    "xgboost": _booster,
    "lightgbm": _booster,
}


def _has_probabilities(estimator: Any) -> bool:
    """skl2onnx calls the scores of a classifier without predict_proba probabilities too."""
    return hasattr(estimator, "predict_proba") or not hasattr(estimator, "__sklearn_tags__")  # the second is a Booster


def _takes_missing(estimator: Any) -> bool:
    """Boosters do; scikit-learn's models say so by a tag, which not every converter knows."""
    if not hasattr(estimator, "__sklearn_tags__"):
        return True
    return bool(estimator.__sklearn_tags__().input_tags.allow_nan)


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
