"""Models of scikit-learn, XGBoost and LightGBM, and their ONNX files, as model folders for the
client `table`.

Their graphs are changed, because Triton serves only tensors with a batch dimension.
"""

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from build_engines.errors import BuildError, UsageError, brief, first_line
from build_engines.families.onnx_file import parse_inputs, with_tensors
from build_engines.families.table_graph import ML, free_name
from build_engines.model_folder import ModelSpec, write_labels
from build_engines.request import Request
from build_engines.weights import onnx_files
from clients.table import CATEGORIES

CLIENT = "table"
BATCH_SIZE = 1024  # rows: one takes microseconds
PICKLES = (".joblib", ".pkl", ".pickle")
HEAD = 4096  # bytes that tell a kind
COLUMNS, LABELS = "columns.txt", "labels.txt"
LIBRARIES = ("sklearn", "xgboost", "lightgbm", "numpy", "scipy", "joblib", "pandas")  # of pickles
OF_CATBOOST = (
    "CatBoost writes its ONNX file itself, model.save_model('model.onnx', format='onnx'); build "
    "that"
)
INSTEAD = "a model.py for Triton's Python backend can serve the model itself"
ROWS = (2, 3)  # of the runs that show which dimensions vary
Class = int | str
Feed = Mapping[str, Any]


def is_table(request: Request, path: Path | None) -> bool:
    """Return whether the weights are a table model: the flag says so, else the file's content."""
    if path is None or path.is_dir() or request.client not in ("", CLIENT):
        return False
    if path.suffix == ".onnx":
        return request.client == CLIENT or has_operators(onnx_files.read(path))
    return bool(kind(path))


def export(request: Request, path: Path, folder: Path) -> ModelSpec:
    """Write 1/model.onnx, columns.txt and labels.txt."""
    if request.precision not in ("fp32", "auto"):
        raise UsageError(f"--precision {request.precision}: a table's model is served in fp32")
    settings: dict[str, str] = {}
    batch_size = BATCH_SIZE
    if path.suffix == ".onnx":
        if request.data:
            raise UsageError(
                f"--data {request.data}: {path} is an ONNX file, which has nothing to "
                "compare it with"
            )
        model = onnx_files.read(path)
        classes: Sequence[Class] = mend(model)
    else:
        model, classes, settings, batch_size = _converted(request, path, folder)
    check_tensors(model)
    onnx.save(model, folder / "1" / "model.onnx")
    settings |= _name_classes(request, classes, folder)
    return with_tensors(
        request,
        folder,
        ModelSpec(client=CLIENT, max_batch_size=batch_size, settings=settings, cpu_only=True),
    )


def _converted(
    request: Request, path: Path, folder: Path
) -> tuple[onnx.ModelProto, Sequence[Class], dict[str, str], int]:
    """Return the graph, the classes, the settings and the most rows of a run. Write columns.txt,
    categories.json and example.json."""
    estimator = read(path, request.allow_pickle)
    from build_engines.families.table_estimators import convert

    converted = convert(
        estimator, parse_inputs(request.inputs) if request.inputs else (), request.data
    )
    write_labels(folder / COLUMNS, converted.columns, None)
    if any(values is not None for values in converted.categories):
        (folder / CATEGORIES).write_text(json.dumps(converted.categories) + "\n", encoding="utf-8")
    (folder / "example.json").write_text(json.dumps(converted.example) + "\n", encoding="utf-8")
    return (
        converted.model,
        converted.classes,
        {"missing": converted.missing} if converted.missing else {},
        converted.batch_size,
    )


def _name_classes(request: Request, classes: Sequence[Class], folder: Path) -> Mapping[str, str]:
    """Write labels.txt from the user's names, else from classes that are texts. Return the setting
    for numbers other than 0, 1, 2 …."""
    texts = [name for name in classes if isinstance(name, str)]
    if texts and request.labels:
        raise UsageError(
            f"--labels {request.labels}: the model has names of its classes: "
            f"{', '.join(texts[:5])} …"
        )
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
    """Return the model, an estimator like scikit-learn's or a Booster. Raise UsageError,
    BuildError."""
    try:
        return {"pickle": _pickle, "xgboost": _xgboost, "lightgbm": _lightgbm}[kind(path)](
            path, allow_pickle
        )
    except (BuildError, ModuleNotFoundError):
        raise
    # each library has errors of its own, and a pickle's code may raise anything
    except Exception as err:
        raise BuildError(f"{path} cannot be read: {type(err).__name__}: {first_line(err)}") from err


def _pickle(path: Path, allow_pickle: bool) -> Any:
    """Return the pickled model. Refuse one that another version of scikit-learn saved: it may
    answer differently."""
    if not allow_pickle:
        raise UsageError(
            f"{path} is a pickle: to read it is to run the code that is in it "
            "(docs/security.md). If you trust who wrote it, add --allow-pickle; an ONNX "
            "file, XGBoost's model.json and LightGBM's model.txt hold no code"
        )
    from sklearn.exceptions import InconsistentVersionWarning

    with warnings.catch_warnings():
        warnings.simplefilter("error", InconsistentVersionWarning)
        try:
            return _unpickled(path)
        except InconsistentVersionWarning as err:
            raise BuildError(
                f"{path} was saved by scikit-learn {err.original_sklearn_version}, and "
                f"{err.current_sklearn_version} is here, which may answer otherwise: pip "
                f"install scikit-learn=={err.original_sklearn_version}, or convert it with "
                "skl2onnx where it was trained and bring the ONNX file"
            ) from err


def _unpickled(path: Path) -> Any:
    """Return the object. NumPy 1, which Triton's stub needs, also reads what NumPy 2 pickled: other
    names of modules, and random generators by their class, with the seed beside the state."""
    from joblib import numpy_pickle

    class Unpickler(numpy_pickle.NumpyUnpickler):  # type: ignore[misc]  # joblib has no types
        def find_class(self, module: str, name: str) -> Any:
            if module == RANDOM and name in GENERATORS:
                return GENERATORS[name]
            try:
                return super().find_class(re.sub(r"^numpy\._core\b", "numpy.core", module), name)
            except (AttributeError, ModuleNotFoundError) as err:
                if module.partition(".")[0] in LIBRARIES:
                    raise
                raise BuildError(f"{path} {_absent(module, name)}") from err

    with (
        path.open("rb") as file,
        numpy_pickle._validate_fileobject_and_memmap(file, str(path)) as (opened, _),
    ):
        return Unpickler(str(path), opened, ensure_native_byte_order=True).load()


def _absent(module: str, name: str) -> str:
    """Return what is missing for a pickle that needs this name, and what to do."""
    if module.startswith("catboost"):
        return f"holds a model of CatBoost: {OF_CATBOOST}"
    return (
        f"needs '{name}' of the user's own code (the module {module}), which a pickle does not "
        f"hold: train the model with parts of scikit-learn alone, or {INSTEAD}"
    )


def _bits(kind: Any = "MT19937") -> Any:
    """Return a generator of random bits, from its name or its class."""
    if isinstance(kind, str):
        kind = getattr(np.random, kind)
    return type(kind.__name__, (kind,), {"__setstate__": _set_state})()


def _set_state(self: Any, state: Any) -> None:
    self.state = state[0] if isinstance(state, tuple) else state


def _random(holder: Any) -> Any:
    return lambda bits="MT19937", *_: holder(
        bits if isinstance(bits, np.random.BitGenerator) else _bits(bits)
    )


# what pickles call to make random generators
RANDOM = "numpy.random._pickle"
GENERATORS = {
    "__bit_generator_ctor": _bits,
    "__generator_ctor": _random(np.random.Generator),
    "__randomstate_ctor": _random(np.random.RandomState),
}


def _xgboost(path: Path, _: bool) -> Any:
    import xgboost

    booster = xgboost.Booster(model_file=str(path))
    best = best_trees(booster)
    if best.num_boosted_rounds() < booster.num_boosted_rounds():
        print(
            f"{path} stopped early: the first {best.num_boosted_rounds()} of its "
            f"{booster.num_boosted_rounds()} rounds are built, as XGBClassifier and XGBRegressor "
            "use them; a Booster's own predict uses all of them: pickle the Booster for those",
            flush=True,
        )
    return best


def best_trees(booster: Any) -> Any:
    """Return XGBoost's Booster up to its best round, the whole if it did not stop early."""
    best = booster.attr("best_iteration")
    return booster[: int(best) + 1] if best else booster


def _lightgbm(path: Path, _: bool) -> Any:
    import lightgbm

    return lightgbm.Booster(model_file=str(path))


def has_operators(model: onnx.ModelProto) -> bool:
    """Return whether skl2onnx or onnxmltools wrote the model."""
    return any(node.domain == ML for node in model.graph.node)


def mend(model: onnx.ModelProto, rows: Feed | None = None) -> list[Class]:
    """Cut ZipMap off, and make the first dimension of every tensor the batch. Return the classes
    that ZipMap named, in the order of the probabilities. `rows` are at least three rows like those
    of training. Raise UsageError if the model does not run on several rows."""
    classes = _cut_zip_map(model.graph)
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if len(dims) and dims[0].dim_value == 1:
            dims[0].Clear()
    _set_shapes(model, rows)
    return classes


def answer_booleans(model: onnx.ModelProto) -> None:
    """Make the first output, the numbers 0 and 1 of classes that are booleans, booleans."""
    output = model.graph.output[0]
    columns = [value.name for value in model.graph.input]
    number = free_name(f"{output.name}_number", columns)
    _rename(model.graph, output.name, number)
    model.graph.node.append(helper.make_node("Cast", [number], [output.name], to=TensorProto.BOOL))
    output.type.tensor_type.elem_type = TensorProto.BOOL


def drop_unused_inputs(model: onnx.ModelProto) -> list[int]:
    """Remove the inputs that no node reads. Return the indices of the others."""
    inputs = list(model.graph.input)
    read = {name for node in model.graph.node for name in node.input}
    kept = [index for index, value in enumerate(inputs) if value.name in read]
    del model.graph.input[:]
    model.graph.input.extend(inputs[index] for index in kept)
    return kept


def _cut_zip_map(graph: onnx.GraphProto) -> list[Class]:
    """Cut off a ZipMap, which turns probabilities into dictionaries, not tensors: its input gets
    its output's name."""
    zip_map = next(
        (node for node in graph.node if node.op_type == "ZipMap" and node.domain == ML), None
    )
    if zip_map is None:
        return []
    outer = zip_map.output[0]
    graph.node.remove(zip_map)
    _rename(graph, zip_map.input[0], outer)
    for value in graph.output:
        if value.name == outer:
            value.CopyFrom(onnx.ValueInfoProto(name=outer))
    values = {
        attribute.name: helper.get_attribute_value(attribute) for attribute in zip_map.attribute
    }
    texts = [text.decode() for text in values.get("classlabels_strings", ())]
    return texts or [int(number) for number in values.get("classlabels_int64s", ())]


def rename_output(model: onnx.ModelProto, part: str, name: str) -> None:
    """Rename the output whose name contains this part."""
    for value in model.graph.output:
        if part in value.name:
            _rename(model.graph, value.name, name)
            value.name = name


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def _set_shapes(model: onnx.ModelProto, rows: Feed | None) -> None:
    """Set the types and shapes of the outputs from runs, because converters leave them out or write
    those of one row."""
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.ClearField("type")
    one, other = (_outputs(model, count, rows) for count in ROWS)
    for value, small, large in zip(model.graph.output, one, other, strict=True):
        if isinstance(small, np.ndarray):
            # of a discriminant analysis
            if (small.shape, large.shape) == tuple((1, count) for count in ROWS):
                _rename(model.graph, value.name, f"{value.name}_row")
                model.graph.node.append(
                    helper.make_node("Transpose", [f"{value.name}_row"], [value.name])
                )
                small, large = small.T, large.T
            dims = [a if a == b else None for a, b in zip(small.shape, large.shape, strict=True)]
            text = small.dtype.kind in "OSU"
            kind = TensorProto.STRING if text else helper.np_dtype_to_tensor_dtype(small.dtype)
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, dims))


def _outputs(model: onnx.ModelProto, count: int, rows: Feed | None) -> Sequence[Any]:
    try:
        if rows is not None:
            return run(model, {name: array[:count] for name, array in rows.items()})
        return run(model, {value.name: _blank(value, count) for value in model.graph.input})
    except Exception as err:  # ONNX Runtime's exceptions have no common base class
        if rows is not None:
            raise UsageError(f"its ONNX file does not run: {brief(err)}; {INSTEAD}") from err
        raise UsageError(
            f"the ONNX file does not run on {count} rows of zeros and empty strings "
            f"({brief(err)}); export it for any number of rows: FloatTensorType([None, "
            "columns]), and encoders with handle_unknown='ignore'"
        ) from err


def _blank(value: onnx.ValueInfoProto, rows: int) -> Any:
    tensor = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    shape = [rows, *(dim.dim_value or 1 for dim in list(tensor.shape.dim)[1:])]
    return (
        np.full(shape, "", object)
        if tensor.elem_type == TensorProto.STRING
        else np.zeros(shape, dtype)
    )


def run(model: onnx.ModelProto, feed: Mapping[str, Any]) -> Sequence[Any]:
    """All outputs."""
    options = onnxruntime.SessionOptions()
    # converters write shapes that outputs do not have, which is mended here
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    outputs: Sequence[Any] = session.run(None, dict(feed))
    return outputs


def check_tensors(model: onnx.ModelProto) -> None:
    """Raise BuildError if an output is not a tensor, such as the dictionaries of a classifier with
    several labels."""
    for value in model.graph.output:
        if not value.type.HasField("tensor_type"):
            raise BuildError(
                f"output '{value.name}' is not a tensor, so Triton cannot serve it: export "
                "the model with options={'zipmap': False}"
            )
