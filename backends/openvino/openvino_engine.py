"""Reads a model with OpenVINO, adapts it to config.pbtxt, compiles it or loads it from the cache,
and runs it. This module imports OpenVINO.

Each run uses `start_async` and `wait`. With one thread, the synchronous `infer` of OpenVINO 2026.4
loses the error if shapes do not match: it returns the outputs of the previous request, which may be
another caller's, or the process crashes (SIGSEGV).
"""

import math
import mmap
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import openvino
import openvino_settings  # type: ignore[import-not-found]  # Triton's stub puts this folder on its path
import tensors as table  # type: ignore[import-not-found]
from batching import Arrays, Call, InvalidInput, Merge, run_merged  # type: ignore[import-not-found]
from openvino.preprocess import PrePostProcessor
from openvino_settings import OpenvinoSettings

Config = dict[str, Any]

DEFAULT_FILE = "model.xml"
DATATYPES = {
    "i8": "TYPE_INT8",
    "i16": "TYPE_INT16",
    "i32": "TYPE_INT32",
    "i64": "TYPE_INT64",
    "u8": "TYPE_UINT8",
    "u16": "TYPE_UINT16",
    "u32": "TYPE_UINT32",
    "u64": "TYPE_UINT64",
    "boolean": "TYPE_BOOL",
    "f16": "TYPE_FP16",
    "f32": "TYPE_FP32",
    "f64": "TYPE_FP64",
}
KINDS = {datatype: kind for kind, datatype in DATATYPES.items()}
CONVERTED = {*DATATYPES, "bf16"}  # datatypes that the compiled model can convert to each other
DEVICE = "CPU"
# Texts are padded to a multiple of this many tokens, because OpenVINO compiles code for each shape
# and keeps it: 1.5 MB for a shape of all-MiniLM-L6-v2.
MULTIPLE = 8
# Operators that ONNX Runtime defines and OpenVINO computes differently: an LSTM's scores were off
# by 0.5 out of 17.
UNLIKE = (b"DynamicQuantizeLSTM",)
# matches those errors of OpenVINO that mean that the request is invalid
WRONG_SHAPE = re.compile("shape_inference/|ParameterMismatch")
# NumPy's integer types whose values may not fit into int32, in which OpenVINO computes
WIDE = ("i8", "u8", "u4")
# OpenVINO's operators whose output has the same values as their first input
SAME_VALUES = {"Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
INT32 = np.iinfo(np.int32)


def read(file: Path) -> Any:
    """Read the model in the file. Raise ValueError or FileNotFoundError if the file is invalid or
    missing."""
    if not file.exists():
        other = file.with_name("model.onnx")
        remedy = '; say default_model_filename: "model.onnx"' if other.is_file() else ""
        raise FileNotFoundError(f"unable to find '{file}'{remedy}")
    for operator in UNLIKE:
        if _contains(file, operator):
            raise ValueError(
                f"OpenVINO computes {operator.decode()} in '{file}' differently from ONNX Runtime"
            )
    try:
        return openvino.Core().read_model(str(file))
    except RuntimeError as err:
        raise ValueError(f"OpenVINO cannot read '{file}': {plain(err)}") from err


def _contains(file: Path, words: bytes) -> bool:
    if file.stat().st_size == 0:  # an empty file cannot be mapped, and read_model reports it
        return False
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(words) >= 0


def plain(error: Exception) -> str:
    """Return OpenVINO's error message without the positions in its source code."""
    lines = [line.strip() for line in str(error).splitlines()]
    reasons = [
        line for line in lines if line and not line.startswith(("Exception from ", "Check '"))
    ]
    return " ".join(reasons) or " ".join(lines)


def fit(model: Any, config: Config) -> None:
    """Reshape the model in place to the shapes in config.pbtxt. Raise ValueError if the model does
    not support them."""
    shapes = {port.get_any_name(): _shape(port, config) for port in model.inputs}
    current = {port.get_any_name(): _known_shape(port) for port in model.inputs}
    if shapes != current:
        try:
            model.reshape(
                {name: openvino.PartialShape(list(shape)) for name, shape in shapes.items()}
            )
        except RuntimeError as err:
            raise ValueError(
                f"model '{config['name']}' cannot take the shapes {shapes}: {plain(err)}; "
                "set max_batch_size 0 or export the model with dynamic dimensions"
            ) from err


def _shape(port: Any, config: Config) -> tuple[int, ...]:
    """Return an input's shape, with the batch dimension first. The other dimensions come from the
    file, or from config.pbtxt if the file does not specify how many there are."""
    entry = next((each for each in config["input"] if each["name"] in port.names), None)
    batch = [-1] if config["max_batch_size"] else []
    if entry and port.partial_shape.rank.is_dynamic:
        return table.configured_shape(entry, config["max_batch_size"])  # type: ignore[no-any-return]
    shape = _known_shape(port)
    if batch and not shape:
        raise ValueError(
            f"input '{port.get_any_name()}' has no dimension for batches: set max_batch_size 0"
        )
    return (*batch, *shape[len(batch) :])


def _known_shape(port: Any) -> tuple[int, ...]:
    """Return the port's shape, with -1 for dynamic dimensions. Raise ValueError if the number of
    dimensions is unknown."""
    shape = port.partial_shape
    if shape.rank.is_dynamic:
        raise ValueError(
            f"tensor '{port.get_any_name()}' has an unknown number of dimensions: list the "
            "tensors in config.pbtxt"
        )
    return tuple(-1 if size.is_dynamic else size.get_length() for size in shape)


def convert(model: Any, config: Config) -> Any:
    """Return the model with its inputs and outputs converted to the datatypes in config.pbtxt, as
    NVIDIA's backend does."""
    processor = PrePostProcessor(model)
    for side, ports, info in (
        ("input", model.inputs, processor.input),
        ("output", model.outputs, processor.output),
    ):
        for entry in config[side]:
            index = index_of(entry["name"], ports)
            wanted = KINDS.get(entry["data_type"])
            if index is not None and wanted and kind(ports[index]) in CONVERTED:
                info(index).tensor().set_element_type(getattr(openvino.Type, wanted))
    return processor.build()


def index_of(name: str, ports: Sequence[Any]) -> int | None:
    """Return the index of the port that has `name` among its names, or None."""
    for index, port in enumerate(ports):
        if name in port.names:
            return index
    return None


def kind(port: Any) -> str:
    """Return OpenVINO's name for the port's datatype."""
    return str(port.element_type.get_type_name())


def tensors(ports: Sequence[Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the inputs or outputs, keyed by the name in config.pbtxt, or else by OpenVINO's first
    name."""
    known = {entry["name"] for entry in entries}
    names = {min(port.names & known, default=port.get_any_name()): port for port in ports}
    return {
        name: table.Tensor(name, kind(port), _known_shape(port), DATATYPES)
        for name, port in names.items()
    }


def fitted(file: Path, config: Config) -> tuple[Any, set[str]]:
    """Return the model adapted to config.pbtxt, and the names of its scalar inputs. Raise
    ValueError if the file and config.pbtxt disagree."""
    model = read(file)
    fit(model, config)
    model = convert(model, config)
    inputs, outputs = (
        tensors(model.inputs, config["input"]),
        tensors(model.outputs, config["output"]),
    )
    for tensor in (*inputs.values(), *outputs.values()):
        tensor.datatype  # noqa: B018  # raises ValueError for strings
    table.check(config, inputs, outputs)
    return model, {name for name, tensor in inputs.items() if not tensor.shape}


def complete(config: Config, file: Path) -> None:
    """Fill in inputs, outputs and max_batch_size in place. Raise ValueError if that is not
    possible."""
    model = read(file)
    fit(model, config)
    table.complete(
        config, tensors(model.inputs, config["input"]), tensors(model.outputs, config["output"])
    )


class Compiled:
    """A compiled model, with its warnings and its compile time. Creating it raises ValueError if
    the processor does not support the model."""

    def __init__(self, model: Any, settings: OpenvinoSettings, name: str, version: str) -> None:
        self.core = openvino.Core()
        self.warnings = [*settings.warnings]
        capabilities = list(self.core.get_property(DEVICE, "OPTIMIZATION_CAPABILITIES"))
        if settings.lacks(capabilities):
            self.warnings.append(
                f"{DEVICE} has no instructions for {settings.precision}, so f32 is used"
            )
        started = time.monotonic()
        self.model = self._compile(model, settings.properties(capabilities), name, version)
        self.seconds = time.monotonic() - started

    def describe(self) -> str:
        """Describe the compilation for the log."""
        get = self.model.get_property
        version = openvino.__version__.partition("-")[0]
        precision = get("INFERENCE_PRECISION_HINT").get_type_name()
        threads = f"{get('INFERENCE_NUM_THREADS')} threads in {get('NUM_STREAMS')} streams"
        origin = "taken from the cache" if get("LOADED_FROM_CACHE") else "compiled"
        return (
            f"OpenVINO {version} on {DEVICE}, {precision}, {threads}, "
            f"{origin} in {self.seconds:.2f} s"
        )

    def _compile(self, model: Any, properties: dict[str, Any], name: str, version: str) -> Any:
        try:
            with openvino_settings.opened(name, version) as folder:
                return self.core.compile_model(
                    model, DEVICE, properties | {"CACHE_DIR": str(folder)}
                )
        except (OSError, RuntimeError) as err:
            self.warnings.append(f"compiled without a cache: {plain(err)}")
        try:
            return self.core.compile_model(model, DEVICE, properties)
        except RuntimeError as err:
            raise ValueError(
                f"OpenVINO cannot compile the model for {DEVICE}: {plain(err)}"
            ) from err


class Runs:
    """Runs merged calls at the same time on several streams, each with its share of the threads."""

    def __init__(self, compiled: Any, merge: Merge) -> None:
        self.compiled, self.merge = compiled, merge
        self.streams = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        self.idle: SimpleQueue[Any] = SimpleQueue()
        for _ in range(self.streams):
            self.idle.put(compiled.create_infer_request())
        self.pool = ThreadPoolExecutor(self.streams) if self.streams > 1 else None

    def run(self, calls: Sequence[Call]) -> list[Arrays]:
        """Return the outputs of each call, in order."""
        size = math.ceil(len(calls) / self.streams)
        starts = range(0, len(calls), size)
        parts = [calls[start : start + size] for start in starts]
        run: Any = self.pool.map if self.pool and len(parts) > 1 else map
        return list(chain.from_iterable(run(self._part, parts)))

    def close(self) -> None:
        """Free the model's memory."""
        if self.pool:
            self.pool.shutdown()
        del self.idle, self.compiled

    def _part(self, calls: Sequence[Call]) -> list[Arrays]:
        outputs: list[Arrays] = run_merged(self._run, self.merge, calls)
        return outputs

    def _run(self, feed: Arrays, names: Sequence[str]) -> Arrays:
        values = {index_of(name, self.compiled.inputs): array for name, array in feed.items()}
        request = self.idle.get()
        try:
            request.start_async(values, share_inputs=True)
            request.wait()
            results = request.results
        except RuntimeError as err:
            error = InvalidInput if WRONG_SHAPE.search(str(err)) else RuntimeError
            raise error(f"OpenVINO: {plain(err)}") from err
        finally:
            self.idle.put(request)
        return {name: results[index_of(name, self.compiled.outputs)] for name in names}


def rows_of_tables(model: Any) -> dict[str, int]:
    """Return {input: number of rows in the table that its values index}. For an index past the last
    row, OpenVINO would read zeros."""
    rows: dict[str, int] = {}
    for port in model.inputs:
        sizes = _table_sizes(port)
        rows |= dict.fromkeys(port.names, min(sizes)) if sizes else {}
    return rows


def _table_sizes(values: Any) -> list[int]:
    """Return the row counts of the tables into which `values`, an output in the graph, are indices.
    Leave out unknown counts."""
    sizes = []
    for target in values.get_target_inputs():
        node, index = target.get_node(), target.get_index()
        if node.get_type_name() in SAME_VALUES and index == 0:
            sizes += _table_sizes(node.output(0))
        elif node.get_type_name() == "Gather" and index == 1:
            axis = node.input_value(2).get_node()
            shape = node.input_value(0).get_partial_shape()
            if axis.get_type_name() == "Constant" and shape.is_static:
                sizes.append(shape.get_shape()[int(axis.get_data().item())])
    return sizes


def check_range(name: str, array: Any, rows: int | None) -> None:
    """Raise InvalidInput for integers that do not fit into the 32 bits in which OpenVINO computes,
    and for indices outside a table with `rows` rows. An index of -1 means the last row."""
    is_wide = array.dtype.str[1:] in WIDE
    if not array.size or (rows is None and not is_wide):
        return
    least, most = array.min(), array.max()
    if rows is not None and not -rows <= least <= most < rows:
        wrong = most if most >= rows else least
        raise InvalidInput(
            f"input '{name}' has the index {wrong}, and its table in the model has {rows} rows"
        )
    if is_wide and not INT32.min <= least <= most <= INT32.max:
        raise InvalidInput(
            f"input '{name}' has integers outside {INT32.min} to {INT32.max}: OpenVINO "
            "computes with 32 bits"
        )
