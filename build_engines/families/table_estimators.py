"""Trained models of scikit-learn, XGBoost and LightGBM -> ONNX, by skl2onnx and onnxmltools."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from build_engines.errors import BuildError, UsageError, brief
from build_engines.families import table
from build_engines.families.table_rows import (
    AGREEING,
    PREDICTIONS,
    PROBABILITIES,
    Array,
    Column,
    agreement,
    answers,
    feed,
    is_missing,
    missing_columns,
    of_file,
    same_in_fp32,
    sample,
)
from clients.base import TensorSpec

# the newest that all of skl2onnx's operators have; Triton 23.01 runs them
OPSETS = {"": 17, table.ML: 3}
MATRIX = "X"
BOOLEANS = (False, True)


@dataclass(frozen=True)
class Converted:
    """The mended graph, the columns' names (if they have any), the classes, the setting `missing`
    ("" for none), a row like those of training, and for each column its only categories, None if it
    may have other cells."""

    model: onnx.ModelProto
    columns: tuple[str, ...]
    classes: tuple[table.Class, ...]
    missing: str
    example: list[Any]
    categories: list[list[Any] | None]


def convert(
    estimator: Any, inputs: Sequence[TensorSpec] = (), data: Path | None = None
) -> Converted:
    """Convert with the columns `inputs`, by default those of the model. Raise BuildError if the
    ONNX file answers differently from the model, for rows near the values that it learned or for
    those of the file `data`."""
    library = type(estimator).__module__.partition(".")[0]
    _check_kind(estimator, library)
    estimator = _best(estimator)
    columns = columns_of(estimator)
    if inputs:
        columns = _named(inputs, columns)
    rows = {"of the model": sample(estimator, columns)}
    if data:
        rows[f"of {data.name}"] = of_file(data, columns)
    if reason := _unconvertible(estimator):
        raise BuildError(f"a {type(estimator).__name__} cannot be converted to ONNX: {reason}")
    _check_answers(estimator, next(iter(rows.values())), columns)
    model, classes, shares = _compared(estimator, columns, rows)
    if min(shares.values()) < AGREEING and library not in _CONVERTERS and not inputs:
        wide = [
            replace(each, datatype="FP64") if each.datatype == "FP32" else each for each in columns
        ]
        with suppress(BuildError):
            in_fp64, classes, shares_of_fp64 = _compared(estimator, wide, rows)
            if min(shares_of_fp64.values()) >= AGREEING:
                print(
                    f"in FP32 {min(shares.values()):.1%} of the answers are alike: the "
                    "model is built in FP64"
                )
                columns, model, shares = wide, in_fp64, shares_of_fp64
    for which, share in shares.items():
        print(
            f"the model and its ONNX file agree on {share:.1%} of {len(rows[which][0])} "
            f"rows {which}",
            flush=True,
        )
    worst = min(shares, key=shares.__getitem__)
    if shares[worst] < AGREEING:
        raise BuildError(
            f"the ONNX file answers otherwise than the {type(estimator).__name__} "
            f"({shares[worst]:.1%} alike): {_reason(estimator, columns, rows[worst])}"
        )
    cells = next(iter(rows.values()))
    able = missing_columns(estimator, model, columns, cells)
    kept = list(range(len(columns)))
    if are_apart(columns, estimator) and all(column.name for column in columns):
        kept = table.drop_unused_inputs(model)
    able = [index for index, old in enumerate(kept) if old in able]
    return Converted(
        model,
        tuple(columns[index].name for index in kept if columns[index].name),
        classes,
        "nan" if kept and len(able) == len(kept) else ",".join(map(str, able)),
        [
            cells[index][0].item() if hasattr(cells[index][0], "item") else cells[index][0]
            for index in kept
        ],
        [_categories(columns[index]) for index in kept],
    )


def _categories(column: Column) -> list[Any] | None:
    """Return the only categories that the column may have, None if it may have others too."""
    return (
        [None if is_missing(value) else value for value in column.values] if column.closed else None
    )


def _compared(
    estimator: Any, columns: Sequence[Column], rows: Mapping[str, Sequence[Array]]
) -> tuple[onnx.ModelProto, tuple[table.Class, ...], dict[str, float]]:
    """Return the mended graph, its classes, and the share of `rows` whose answers are alike. Raise
    BuildError."""
    library = type(estimator).__module__.partition(".")[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = _CONVERTERS.get(library, _sklearn)(estimator, columns)
    except Exception as err:  # the converters' errors have no common base class
        unknown = re.search(r"shape calculator for type '<class '[\w.]*\.(\w+)'>", str(err))
        reason = f"skl2onnx does not know {unknown[1]}" if unknown else brief(err)
        instead = table.INSTEAD
        raise BuildError(
            f"a {type(estimator).__name__} cannot be converted to ONNX: {reason}; {instead}"
        ) from err
    cells = next(iter(rows.values()))
    classes = table.mend(model, feed(model, cells, columns))
    known = np.asarray(getattr(estimator, "classes_", ()))
    if known.dtype == bool and len(known) == len(BOOLEANS):
        table.answer_booleans(model)
        classes = []
    elif not classes:
        classes = known.tolist()
    shares = {which: agreement(estimator, model, columns, each) for which, each in rows.items()}
    # skl2onnx calls all scores of classes probabilities
    if PROBABILITIES not in answers(estimator, cells, columns):
        table.rename_output(model, "prob", "scores")
    return model, tuple(classes), shares


def _named(inputs: Sequence[TensorSpec], columns: Sequence[Column]) -> list[Column]:
    """Return the user's columns, with the categories that the model knows of each."""
    if len(inputs) != len(columns):
        raise UsageError(f"{len(inputs)} times --input, and the model takes {len(columns)} columns")
    return [
        replace(each, name=spec.name, datatype=spec.datatype)
        for spec, each in zip(inputs, columns, strict=True)
    ]


def _check_answers(estimator: Any, cells: Sequence[Array], columns: Sequence[Column]) -> None:
    """Raise UsageError for a classifier of several labels."""
    several = isinstance(getattr(estimator, "classes_", None), list)
    if not several and hasattr(estimator, "classes_") and hasattr(estimator, "__sklearn_tags__"):
        try:
            several = np.ndim(answers(estimator, cells, columns)[PREDICTIONS]) > 1
        except Exception as err:
            raise BuildError(
                "the model itself does not answer rows like those it was trained on: "
                f"{brief(err)}; if the types of its columns are the reason, name each in "
                "its order: --input NAME:FP32:1, NAME:BYTES:1 for strings"
            ) from err
    if several:
        raise UsageError(
            f"a {type(estimator).__name__} with several labels at once is not built: train "
            "and build one classifier for each label (the members of estimators_ of a "
            "MultiOutputClassifier are such)"
        )


def _reason(estimator: Any, columns: Sequence[Column], cells: Sequence[Array]) -> str:
    """Return why answers differ, and what to do."""
    if not same_in_fp32(estimator, columns, cells):
        return (
            "FP32 cannot hold its columns, and in FP64 it is not converted: train on "
            "differences from a near number"
        )
    return "its converter does not know something that the model does"


def _unconvertible(estimator: Any) -> str:
    """Return which part skl2onnx is known not to convert, or ""."""
    for step in _steps(estimator):
        if type(step).__name__ == "FunctionTransformer" and step.func is not None:
            return (
                "skl2onnx does not convert "
                f"FunctionTransformer({getattr(step.func, '__name__', step.func)})"
            )
        indicator = getattr(step, "indicator_", None)
        if indicator is not None and len(indicator.features_):
            return (
                f"skl2onnx does not convert {type(step).__name__}(add_indicator=True): train "
                "without add_indicator"
            )
        if any(isinstance(value, str) for value in getattr(step, "statistics_", ())):
            return (
                "skl2onnx does not convert a SimpleImputer of texts: train "
                "OneHotEncoder(handle_unknown='ignore') on the missing cells themselves"
            )
    return ""


def _steps(estimator: Any) -> Iterator[Any]:
    """Yield the estimator and all estimators within it."""
    yield estimator
    inner = [step for _, step in getattr(estimator, "steps", ())]
    inner += [step for _, step, _ in getattr(estimator, "transformers_", ())]
    inner += [step for _, step in getattr(estimator, "transformer_list", ())]
    inner += (
        list(np.ravel(np.array(getattr(estimator, "estimators_", ()), object)))
        if _is_voting(estimator)
        else []
    )
    for step in inner:
        if hasattr(step, "get_params"):
            yield from _steps(step)


def _is_voting(estimator: Any) -> bool:
    return type(estimator).__name__ in ("VotingClassifier", "VotingRegressor")


def _convertible(estimator: Any) -> Any:
    """Return a copy that skl2onnx converts with the same answers. A missing text is the category
    ""."""
    copied = deepcopy(estimator)
    for step in _steps(copied):
        if _is_voting(step):
            step.flatten_transform = False  # of transform(), which is not served
        if type(step).__name__ == "KBinsDiscretizer" and step.encode == "onehot":
            step.encode = "onehot-dense"
        if hasattr(step, "statistics_"):
            # of dtype object if a whole number fills the gaps
            step.statistics_ = step.statistics_.astype(float)
        for index, categories in enumerate(getattr(step, "categories_", ())):
            missing = [is_missing(value) for value in categories.tolist()]
            if categories.dtype.kind == "O" and any(missing):
                if "" in categories:
                    raise BuildError(
                        "a column has the categories missing and '', which are the same in CSV"
                    )
                step.categories_[index] = np.where(missing, "", categories)
    return copied


def _check_kind(estimator: Any, library: str) -> None:
    """Raise UsageError if it is not a model, or maps its categories outside of its trees."""
    if library not in _CONVERTERS and not hasattr(estimator, "__sklearn_tags__"):
        name = type(estimator).__name__
        raise UsageError(
            f"the file holds a {name}, which is not a model of scikit-learn, XGBoost or LightGBM"
        )
    booster = booster_of(estimator)
    categories = "c" in (getattr(booster, "feature_types", None) or ()) or getattr(
        booster, "pandas_categorical", None
    )
    if categories:
        raise UsageError(
            "the model has categorical columns, which its converter does not know: train it "
            "on codes or on columns of scikit-learn's OneHotEncoder, in a pipeline"
        )
    for inner in map(booster_of, _steps(estimator)):
        if (
            hasattr(inner, "num_feature")
            and (inner.trees_to_dataframe().missing_type == "Zero").any()
        ):
            raise UsageError(
                "the model takes 0 as missing, which its converter does not know: train it "
                "on empty cells"
            )


def _best(estimator: Any) -> Any:
    """Keep the trees up to the best one, which XGBoost's own predict uses after early stopping."""
    booster = booster_of(estimator)
    if not type(booster).__module__.startswith("xgboost") or not (
        best := booster.attr("best_iteration")
    ):
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
    _register_scorers()
    types = {
        "FP32": data_types.FloatTensorType,
        "FP64": data_types.DoubleTensorType,
        "INT64": data_types.Int64TensorType,
        "BYTES": data_types.StringTensorType,
        "BOOL": data_types.BooleanTensorType,
    }
    if are_apart(columns, estimator):
        initial = [
            (c.name or f"column_{index}", types[c.datatype]([None, 1]))
            for index, c in enumerate(columns)
        ]
    else:
        initial = [(MATRIX, types[columns[0].datatype]([None, len(columns)]))]
    return to_onnx(_convertible(estimator), initial_types=initial, target_opset=OPSETS)


def _register_boosters() -> None:
    """Register onnxmltools' converters with skl2onnx, so that it can convert boosters in
    pipelines."""
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
    for model, shape, converter, choices in (
        (xgboost.XGBClassifier, classifier, convert_xgboost, options),
        (xgboost.XGBRegressor, regressor, convert_xgboost, None),
        (lightgbm.LGBMClassifier, classifier, convert_lightgbm, options),
        (lightgbm.LGBMRegressor, regressor, convert_lightgbm, {"split": None}),
    ):
        library = model.__module__.partition(".")[0]
        alias = f"{'XGBoost' if library == 'xgboost' else 'LightGbm'}{model.__name__}"
        update_registered_converter(model, alias, shape, converter, options=choices, overwrite=True)


def _register_scorers() -> None:
    """Name the option zipmap, which skl2onnx sets in every pipeline, to the one converter that
    lacks it."""
    from skl2onnx.common._registration import get_converter

    get_converter("SklearnLinearSVC")._options["zipmap"] = [True, False, "columns"]


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


def columns_of(estimator: Any) -> list[Column]:
    """Return the columns, with the names it was trained with and the categories that its encoders
    know."""
    names = _names(estimator)
    known: dict[int, tuple[str, tuple[Any, ...], bool]] = {}
    first = _first(estimator)
    if hasattr(first, "transformers_"):
        indices = first._transformer_to_input_indices
        for name, transformer, _ in first.transformers_:
            known |= dict(zip(indices[name], _encoded(transformer), strict=False))
    else:
        known |= dict(enumerate(_encoded(first)))
    return [Column(name, *known.get(index, ())) for index, name in enumerate(names)]


def _names(estimator: Any) -> list[str]:
    """Return a name for each column, "" if columns have no names."""
    booster = booster_of(estimator)
    if type(booster).__module__.startswith("xgboost"):
        return list(booster.feature_names or [""] * booster.num_features())
    # LightGBM's, which names columns Column_0 … where they had no names
    if hasattr(booster, "num_feature"):
        names = booster.feature_name()
        return (
            [""] * len(names)
            if all(re.fullmatch(r"Column_\d+", name) for name in names)
            else list(names)
        )
    count = int(getattr(estimator, "n_features_in_", 0))
    if not count:
        raise UsageError(
            f"a {type(estimator).__name__} that is not trained, or not on rows, cannot be served"
        )
    return [str(name) for name in getattr(estimator, "feature_names_in_", [""] * count)]


def _encoded(transformer: Any) -> Iterator[tuple[str, tuple[Any, ...], bool]]:
    """Yield each column's datatype, its categories, from an encoder that comes first or after
    another step, and whether an encoder that comes first, or after imputers of missing cells only,
    refuses others."""
    steps = (
        [step for _, step in transformer.steps] if hasattr(transformer, "steps") else [transformer]
    )
    encoder = next((step for step in steps if hasattr(step, "categories_")), None)
    first = next(
        (step for step in steps if not is_missing(getattr(step, "missing_values", 0))), None
    )
    closed = encoder is first and getattr(encoder, "handle_unknown", "") == "error"
    for categories in getattr(encoder, "categories_", ()):
        kind = categories.dtype.kind
        datatype = "BYTES" if kind in "OSU" else "INT64" if kind in "iu" else "FP32"
        yield datatype, tuple(categories.tolist()), closed


def are_apart(columns: Sequence[Column], estimator: Any) -> bool:
    """Return whether each column is its own input: types differ, or a step selects columns by
    name."""
    first = _first(estimator)
    return len({column.datatype for column in columns}) > 1 or (
        hasattr(first, "transformers_") and all(column.name for column in columns)
    )


def _first(estimator: Any) -> Any:
    """Return the first step of a pipeline."""
    return estimator.steps[0][1] if hasattr(estimator, "steps") else estimator


def booster_of(estimator: Any) -> Any:
    """Return XGBoost's or LightGBM's inner Booster, or any other estimator itself."""
    if hasattr(estimator, "get_booster"):
        return estimator.get_booster()
    return getattr(estimator, "booster_", estimator)
