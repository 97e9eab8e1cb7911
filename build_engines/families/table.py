"""Builds tabular models from models of scikit-learn, XGBoost and LightGBM, or from ONNX files that
were converted from such models. The package tables converts the models."""

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import onnx

from build_engines.errors import BuildError, UsageError, first_line
from build_engines.families.family import Family
from build_engines.families.own_torchscript import parse_inputs
from build_engines.families.tables.repair import (
    BATCH_SIZE,
    INSTEAD,
    Class,
    check_tensors,
    has_operators,
    mend,
)
from build_engines.families.tables.to_onnx import Converted, convert
from build_engines.families.tables.trees import best_trees
from build_engines.labels import write_labels
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from build_engines.weights import LIGHTGBM, ONNX_FILE, PICKLE, XGBOOST, Weights
from clients.table import CATEGORIES

COLUMNS, LABELS = "columns.txt", "labels.txt"
CATBOOST_REMEDY = (
    "CatBoost writes its ONNX file itself, model.save_model('model.onnx', format='onnx'); build "
    "that"
)
# a class that cannot be imported is the user's own code, unless its module is in one of these
LIBRARIES = ("sklearn", "xgboost", "lightgbm", "numpy", "scipy", "joblib", "pandas")


def write_model(_: Family, weights: Weights, request: Request, folder: Path) -> ModelSpec:
    """Write 1/model.onnx, labels.txt if the classes have names and, unless the weights are an ONNX
    file, the files that `_convert` describes. Return the ModelSpec. Raise UsageError unless
    --precision is fp32, and BuildError if the model cannot be converted or served."""
    if request.precision != "fp32":
        raise UsageError(f"--precision {request.precision}: a table's model is served in fp32")
    settings: dict[str, str] = {}
    batch_size = BATCH_SIZE
    classes: Sequence[Class]
    if weights.kind == ONNX_FILE:
        model = deepcopy(weights.graph)
        classes = mend(model)  # changes `model`
    else:
        converted = _convert(request, weights, folder)
        model, classes, batch_size = converted.model, converted.classes, converted.batch_size
        if converted.missing:
            settings["missing"] = converted.missing
    check_tensors(model)
    onnx.save(model, folder / "1" / "model.onnx")
    settings |= _name_classes(request, classes, folder)
    return ModelSpec(max_batch_size=batch_size, settings=settings)


def _convert(request: Request, weights: Weights, folder: Path) -> Converted:
    """Convert the model to ONNX, and return the result. Write example.json, columns.txt if columns
    have names, and categories.json if a column accepts only certain values."""
    estimator = read(weights, request.allow_pickle)
    inputs = parse_inputs(request.inputs) if request.inputs else ()
    converted = convert(estimator, inputs)
    names = [column.name for column in converted.columns if column.name]
    write_labels(folder / COLUMNS, names, None)
    categories = [column.categories for column in converted.columns]
    if any(values is not None for values in categories):
        (folder / CATEGORIES).write_text(json.dumps(categories) + "\n", encoding="utf-8")
    example = [cells.tolist()[0] for cells in converted.cells]  # the first of the sample rows
    (folder / "example.json").write_text(json.dumps(example) + "\n", encoding="utf-8")
    return converted


def _name_classes(request: Request, classes: Sequence[Class], folder: Path) -> Mapping[str, str]:
    """Write labels.txt with the user's labels, or with the model's own class names if they are
    strings. Return the setting `classes` if the classes are numbers other than 0, 1, 2 …. Raise
    UsageError if there are both labels and class names."""
    texts = [name for name in classes if isinstance(name, str)]
    if texts and request.labels:
        raise UsageError(
            f"--labels {request.labels}: the model itself names its classes: "
            f"{', '.join(texts[:5])} …"
        )
    write_labels(folder / LABELS, texts, request.labels)
    are_indices = list(classes) == list(range(len(classes)))
    if texts or are_indices:
        return {}
    return {"classes": ",".join(map(str, classes))}


def read(weights: Weights, allow_pickle: bool) -> Any:
    """Load the model, which is an estimator with scikit-learn's interface or a Booster. Raise
    UsageError for a pickle without --allow-pickle, ModuleNotFoundError if a package that the file
    needs is not installed, and BuildError if the file cannot be read."""
    path = weights.path
    try:
        return READERS[weights.kind](path, allow_pickle)
    except (BuildError, ModuleNotFoundError):
        raise
    # each library has errors of its own, and a pickle's code may raise anything
    except Exception as err:
        reason = f"{type(err).__name__}: {first_line(err)}"
        raise BuildError(f"{path} cannot be read: {reason}") from err


def _read_pickle(path: Path, allow_pickle: bool) -> Any:
    """Return the pickled model. Raise UsageError unless `allow_pickle` is true, and BuildError for
    a model that another version of scikit-learn saved, because its predictions may change."""
    if not allow_pickle:
        raise UsageError(
            f"{path} is a pickle, and reading it runs the code in it (docs/security.md). If you "
            "trust its author, add --allow-pickle; an ONNX file, XGBoost's model.json and "
            "LightGBM's model.txt contain no code"
        )
    from sklearn.exceptions import InconsistentVersionWarning

    with warnings.catch_warnings():
        warnings.simplefilter("error", InconsistentVersionWarning)
        try:
            return _unpickled(path)
        except InconsistentVersionWarning as err:
            own = err.original_sklearn_version
            raise BuildError(
                f"{path} was saved by scikit-learn {own}; {err.current_sklearn_version}, which is "
                f"installed, may answer differently: .venv/bin/pip install scikit-learn=={own}, "
                "or convert it with skl2onnx where it was trained and bring the ONNX file"
            ) from err


def _unpickled(path: Path) -> Any:
    """Return the pickled object. NumPy 1 is installed, because Triton's stub needs it. It cannot
    read what NumPy 2 pickled, so the names of NumPy 2's modules are translated. Random generators,
    whose format has changed too, are left out, because no prediction needs them. Raise BuildError
    for a class of CatBoost's or of the user's own code."""
    from joblib import numpy_pickle

    class Unpickler(numpy_pickle.NumpyUnpickler):  # type: ignore[misc]  # joblib has no types
        def find_class(self, module: str, name: str) -> Any:
            if module == "numpy.random._pickle":
                return Unused
            if module.startswith("catboost"):
                raise BuildError(f"{path} holds a model of CatBoost: {CATBOOST_REMEDY}")
            numpy_1_module = re.sub(r"^numpy\._core\b", "numpy.core", module)
            try:
                return super().find_class(numpy_1_module, name)
            except (AttributeError, ModuleNotFoundError) as err:
                if module.partition(".")[0] in LIBRARIES:
                    raise
                raise BuildError(
                    f"{path} needs '{name}' of the user's own code (the module {module}), which a "
                    "pickle does not contain: train the model with scikit-learn's own classes "
                    f"only, or {INSTEAD}"
                ) from err

    # joblib's load() does the same with an Unpickler of its own
    with (
        path.open("rb") as file,
        numpy_pickle._validate_fileobject_and_memmap(file, str(path)) as (opened, _),
    ):
        return Unpickler(str(path), opened, ensure_native_byte_order=True).load()


class Unused:
    """Replaces a random generator of a pickled model."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


def _read_xgboost(path: Path, _: bool) -> Any:
    """Return the Booster in the file, up to its best round. Print a note if rounds are left out."""
    import xgboost

    booster = xgboost.Booster(model_file=str(path))
    best = best_trees(booster)
    built, trained = best.num_boosted_rounds(), booster.num_boosted_rounds()
    if built < trained:
        print(
            f"{path} stopped early: the first {built} of its {trained} rounds are built, as "
            "XGBClassifier and XGBRegressor use them; a Booster's own predict uses all of them: "
            "pickle the Booster for those",
            flush=True,
        )
    return best


def _read_lightgbm(path: Path, _: bool) -> Any:
    import lightgbm

    return lightgbm.Booster(model_file=str(path))


def _recognizes(weights: Weights) -> bool:
    """Return whether the weights are a tabular model: a pickle, a file of XGBoost or LightGBM, or
    an ONNX file with operators for such models."""
    return weights.kind in READERS or (weights.kind == ONNX_FILE and has_operators(weights.graph))


READERS: dict[str, Callable[[Path, bool], Any]] = {
    PICKLE: _read_pickle,
    XGBOOST: _read_xgboost,
    LIGHTGBM: _read_lightgbm,
}
FAMILY = Family(
    client="table",
    writers=dict.fromkeys((*READERS, ONNX_FILE), write_model),
    recognizes=_recognizes,
    cpu_only=True,
)
