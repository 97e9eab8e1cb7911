"""Files of trained models of tables: what joblib and pickle saved, and XGBoost's and LightGBM's own."""

import warnings
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError, UsageError, first_line

PICKLES = (".joblib", ".pkl", ".pickle")
HEAD = 4096  # bytes that tell a kind


def kind(path: Path) -> str:
    """pickle, xgboost or lightgbm; "" for another file."""
    if path.suffix in PICKLES:
        return "pickle"
    with path.open("rb") as file:
        head = file.read(HEAD)
    if head.startswith(b"tree\n"):
        return "lightgbm"
    return "xgboost" if path.suffix in (".json", ".ubj") and b"learner" in head else ""


def read(path: Path, allow_pickle: bool) -> Any:
    """The model: an estimator of scikit-learn's kind, or a Booster. Raises UsageError, BuildError."""
    try:
        return {"pickle": _pickle, "xgboost": _xgboost, "lightgbm": _lightgbm}[kind(path)](path, allow_pickle)
    except (BuildError, ModuleNotFoundError):
        raise
    except Exception as err:  # each library has errors of its own, and a pickle's code may raise anything
        raise BuildError(f"{path} cannot be read: {type(err).__name__}: {first_line(err)}") from err


def _pickle(path: Path, allow_pickle: bool) -> Any:
    """A model that another version of scikit-learn saved is refused: it may answer otherwise."""
    if not allow_pickle:
        raise UsageError(
            f"{path} is a pickle: to read it is to run the code that is in it (docs/security.md). If you trust who "
            "wrote it, add --allow-pickle; an ONNX file, XGBoost's model.json and LightGBM's model.txt hold no code"
        )
    import joblib
    from sklearn.exceptions import InconsistentVersionWarning

    with warnings.catch_warnings():
        warnings.simplefilter("error", InconsistentVersionWarning)
        try:
            return joblib.load(path)
        except InconsistentVersionWarning as err:
            raise BuildError(
                f"{path} was saved by scikit-learn {err.original_sklearn_version}, and {err.current_sklearn_version} "
                f"is here, which may answer otherwise: pip install scikit-learn=={err.original_sklearn_version}, or "
                "convert it with skl2onnx where it was trained and bring the ONNX file"
            ) from err


def _xgboost(path: Path, _: bool) -> Any:
    import xgboost

    return xgboost.Booster(model_file=str(path))


def _lightgbm(path: Path, _: bool) -> Any:
    import lightgbm

    return lightgbm.Booster(model_file=str(path))
