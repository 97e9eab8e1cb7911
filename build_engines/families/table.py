"""Models of scikit-learn, XGBoost and LightGBM, and their ONNX files, as model folders for the client `table`."""

import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx

from build_engines.errors import BuildError, UsageError, first_line
from build_engines.families import table_graph
from build_engines.families.onnx_file import parse_inputs, with_tensors
from build_engines.families.table_graph import Class
from build_engines.model_folder import ModelSpec, write_labels
from build_engines.request import Request
from build_engines.weights import onnx_files

CLIENT = "table"
BATCH_SIZE = 1024  # rows: one takes microseconds
PICKLES = (".joblib", ".pkl", ".pickle")
HEAD = 4096  # bytes that tell a kind
NUMPY_1 = ("__bit_generator_ctor", "__generator_ctor", "__randomstate_ctor")  # functions that its pickles call
NUMPY_2 = (
    "numeric",
    "fromnumeric",
    "umath",
    "records",
    "memmap",
)  # modules of numpy.core that NumPy 2 calls numpy._core
COLUMNS, LABELS = "columns.txt", "labels.txt"


def is_table(request: Request, path: Path | None) -> bool:
    """Whether the weights are a table's model: by the flag, else by what the file holds."""
    if path is None or path.is_dir() or request.client not in ("", CLIENT):
        return False
    if path.suffix == ".onnx":
        return request.client == CLIENT or table_graph.is_table(onnx_files.read(path))
    return bool(kind(path))


def export(request: Request, path: Path, folder: Path) -> ModelSpec:
    """Writes 1/model.onnx, columns.txt and labels.txt."""
    if request.precision not in ("fp32", "auto"):
        raise UsageError(f"--precision {request.precision}: a table's model is served in fp32")
    settings: dict[str, str] = {}
    if path.suffix == ".onnx":
        if request.data:
            raise UsageError(f"--data {request.data}: {path} is an ONNX file, which has nothing to compare it with")
        model = onnx_files.read(path)
        classes: Sequence[Class] = table_graph.mend(model)
    else:
        model, classes, settings = _converted(request, path, folder)
    table_graph.check_tensors(model)
    onnx.save(model, folder / "1" / "model.onnx")
    settings |= _name_classes(request, classes, folder)
    return with_tensors(
        request, folder, ModelSpec(client=CLIENT, max_batch_size=BATCH_SIZE, settings=settings, cpu_only=True)
    )


def _converted(request: Request, path: Path, folder: Path) -> tuple[onnx.ModelProto, Sequence[Class], dict[str, str]]:
    """The graph, the classes and the settings; writes columns.txt."""
    estimator = read(path, request.allow_pickle)
    from build_engines.families.table_estimators import convert

    converted = convert(estimator, parse_inputs(request.inputs) if request.inputs else (), request.data)
    write_labels(folder / COLUMNS, converted.columns, None)
    (folder / "example.json").write_text(json.dumps(converted.example) + "\n", encoding="utf-8")
    return converted.model, converted.classes, {"missing": converted.missing} if converted.missing else {}


def _name_classes(request: Request, classes: Sequence[Class], folder: Path) -> Mapping[str, str]:
    """Writes labels.txt of the user's names, else of classes that are texts; other numbers than 0, 1, 2 … are a
    setting."""
    texts = [name for name in classes if isinstance(name, str)]
    if texts and request.labels:
        raise UsageError(f"--labels {request.labels}: the model has names of its classes: {', '.join(texts[:5])} …")
    write_labels(folder / LABELS, texts, request.labels)
    numbered = not texts and list(classes) != list(range(len(classes)))
    return {"classes": ",".join(map(str, classes))} if numbered else {}


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

    with warnings.catch_warnings(), _numpy_2():
        warnings.simplefilter("error", InconsistentVersionWarning)
        try:
            return joblib.load(path)
        except InconsistentVersionWarning as err:
            raise BuildError(
                f"{path} was saved by scikit-learn {err.original_sklearn_version}, and {err.current_sklearn_version} "
                f"is here, which may answer otherwise: pip install scikit-learn=={err.original_sklearn_version}, or "
                "convert it with skl2onnx where it was trained and bring the ONNX file"
            ) from err


@contextmanager
def _numpy_2() -> Iterator[None]:
    """Let NumPy 1, which Triton's stub needs, read what NumPy 2 pickled: its modules' new names, and random generators
    by their class, with the seed beside the state."""
    from numpy.random import BitGenerator, Generator, RandomState, _pickle

    own = {name: getattr(_pickle, name) for name in NUMPY_1}

    def construct(kind: Any = "MT19937") -> Any:
        if isinstance(kind, type):
            return type(kind.__name__, (kind,), {"__setstate__": _set_state})()
        return own["__bit_generator_ctor"](kind)

    def wrapped(holder: Any) -> Any:
        return lambda bits="MT19937", *_: holder(bits if isinstance(bits, BitGenerator) else construct(bits))

    made = dict(zip(NUMPY_1, (construct, wrapped(Generator), wrapped(RandomState)), strict=True))
    modules = {f"numpy._core.{name}": import_module(f"numpy.core.{name}") for name in NUMPY_2}
    added = modules.keys() - sys.modules.keys()
    sys.modules.update({name: modules[name] for name in added})
    for name, value in made.items():
        setattr(_pickle, name, value)
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(_pickle, name, value)
        for name in added:
            del sys.modules[name]


def _set_state(self: Any, state: Any) -> None:
    self.state = state[0] if isinstance(state, tuple) else state


def _xgboost(path: Path, _: bool) -> Any:
    import xgboost

    return xgboost.Booster(model_file=str(path))


def _lightgbm(path: Path, _: bool) -> Any:
    import lightgbm

    return lightgbm.Booster(model_file=str(path))
