"""Models of scikit-learn, XGBoost and LightGBM, and their ONNX files, as model folders for the client `table`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from build_engines.errors import UsageError
from build_engines.families import table_graph
from build_engines.families.onnx_file import with_tensors
from build_engines.families.table_graph import Class
from build_engines.families.torchscript_file import parse_inputs
from build_engines.model_folder.labels import write_labels
from build_engines.model_folder.spec import ModelSpec
from build_engines.request import Request
from build_engines.weights import estimators, onnx_files

CLIENT = "table"
BATCH_SIZE = 1024  # rows: one takes microseconds
COLUMNS, LABELS = "columns.txt", "labels.txt"


def is_table(request: Request, path: Path | None) -> bool:
    """Whether the weights are a table's model: by the flag, else by what the file holds."""
    if path is None or path.is_dir() or request.client not in ("", CLIENT):
        return False
    if path.suffix == ".onnx":
        return request.client == CLIENT or table_graph.is_table(onnx_files.read(path))
    return bool(estimators.kind(path))


def export(request: Request, path: Path, folder: Path) -> ModelSpec:
    """Writes 1/model.onnx, columns.txt and labels.txt."""
    if request.precision not in ("fp32", "auto"):
        raise UsageError(f"--precision {request.precision}: a table's model is served in fp32")
    settings: dict[str, str] = {}
    if path.suffix == ".onnx":
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
    estimator = estimators.read(path, request.allow_pickle)
    from build_engines.families.table_estimators import convert

    converted = convert(estimator, parse_inputs(request.inputs) if request.inputs else ())
    write_labels(folder / COLUMNS, converted.columns, None)
    return converted.model, converted.classes, {"missing": "nan"} if converted.missing else {}


def _name_classes(request: Request, classes: Sequence[Class], folder: Path) -> Mapping[str, str]:
    """Writes labels.txt of the user's names, else of classes that are texts; other numbers than 0, 1, 2 … are a
    setting."""
    texts = [name for name in classes if isinstance(name, str)]
    if texts and request.labels:
        raise UsageError(f"--labels {request.labels}: the model has names of its classes: {', '.join(texts[:5])} …")
    write_labels(folder / LABELS, texts, request.labels)
    numbered = not texts and list(classes) != list(range(len(classes)))
    return {"classes": ",".join(map(str, classes))} if numbered else {}
