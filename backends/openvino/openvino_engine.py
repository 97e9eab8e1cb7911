"""Reads a model with OpenVINO, adapts it to config.pbtxt, compiles it or loads it from the cache,
and runs it. This module imports OpenVINO.

Each run uses `start_async` and `wait`. With one thread, the synchronous `infer` of OpenVINO 2026.4
does not report mismatched shapes: it returns the outputs of the previous request, which may be
another caller's, or the process crashes (SIGSEGV).
"""

import math
import mmap
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import openvino
import openvino_settings  # Triton's stub puts this folder on its path
import tensors as specs
import triton_python_backend_utils as pb_utils
from batching import Arrays, Calls, InvalidInput, Merge, run_merged
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
CONVERTED = {*DATATYPES, "bf16"}  # datatypes that a compiled model can convert to one another
DEVICE = "CPU"
# Texts are padded to a multiple of MULTIPLE tokens, because OpenVINO compiles code for each shape
# and keeps this code, which takes 1.5 MB for each shape of all-MiniLM-L6-v2.
MULTIPLE = 8
# An operator of ONNX Runtime that OpenVINO computes differently: of an LSTM's scores, some of
# magnitude 17 were wrong by 0.5.
MISCOMPUTED = b"DynamicQuantizeLSTM"
# matches the errors of OpenVINO that mean that the request is invalid
WRONG_SHAPE = re.compile("shape_inference/|ParameterMismatch")
# NumPy's integer types whose values may not fit into int32, in which OpenVINO computes
MAY_EXCEED_INT32 = ("i8", "u8", "u4")
# OpenVINO's operators whose output has the same values as their first input
SAME_VALUES = {"Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
INT32 = np.iinfo(np.int32)


def read_model(file: Path) -> Any:
    """Read the model in the file. Raise ValueError if OpenVINO cannot read it or would compute it
    wrongly, and FileNotFoundError if it is missing."""
    if not file.exists():
        other = file.with_name("model.onnx")
        remedy = '; say default_model_filename: "model.onnx"' if other.is_file() else ""
        raise FileNotFoundError(f"unable to find '{file}'{remedy}")
    if _contains(file, MISCOMPUTED):
        raise ValueError(
            f"OpenVINO computes {MISCOMPUTED.decode()} in '{file}' differently from ONNX Runtime"
        )
    try:
        return openvino.Core().read_model(str(file))
    except RuntimeError as err:
        raise ValueError(f"OpenVINO cannot read '{file}': {plain(err)}") from err


def _contains(file: Path, text: bytes) -> bool:
    """Return whether the file contains the text. Do not read the whole file into memory."""
    if file.stat().st_size == 0:  # an empty file cannot be mapped, and read_model reports it
        return False
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(text) >= 0


def plain(error: Exception) -> str:
    """Return OpenVINO's error message without the positions in its source code."""
    lines = [line.strip() for line in str(error).splitlines()]
    positions = ("Exception from ", "Check '")
    reasons = [line for line in lines if line and not line.startswith(positions)]
    return " ".join(reasons) or " ".join(lines)


def _shape(port: Any) -> tuple[int, ...]:
    """Return the port's shape, with -1 for dynamic dimensions. Raise ValueError if the number of
    dimensions is unknown."""
    shape = port.partial_shape
    if shape.rank.is_dynamic:
        raise ValueError(
            f"tensor '{port.get_any_name()}' has an unknown number of dimensions: export the "
            "model with a known one"
        )
    return tuple(-1 if size.is_dynamic else size.get_length() for size in shape)


def convert(model: Any, config: Config) -> Any:
    """Return the model with its inputs and outputs converted to the datatypes in config.pbtxt, as
    NVIDIA's backend does."""
    processor = PrePostProcessor(model)
    for entries, ports, info in (
        (config["input"], model.inputs, processor.input),
        (config["output"], model.outputs, processor.output),
    ):
        for entry in entries:
            index = index_of(entry["name"], ports)
            wanted = KINDS.get(entry["data_type"])
            # specs.check refuses the entries that are left out here
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
    configured = {entry["name"] for entry in entries}
    named = {}
    for port in ports:
        name = min(port.names & configured, default=port.get_any_name())
        named[name] = specs.Tensor(name, kind(port), _shape(port), DATATYPES)
    return named


def adapted_model(file: Path, config: Config) -> tuple[Any, set[str]]:
    """Return the model adapted to config.pbtxt, and the names of its scalar inputs. Raise
    ValueError if the file is invalid or disagrees with config.pbtxt, and FileNotFoundError if it is
    missing."""
    model = convert(read_model(file), config)
    inputs = tensors(model.inputs, config["input"])
    outputs = tensors(model.outputs, config["output"])
    specs.check(config, inputs, outputs, {})
    return model, {name for name, tensor in inputs.items() if not tensor.shape}


def complete(config: Config, file: Path) -> None:
    """Fill in the inputs, outputs, max_batch_size and dynamic_batching of `config`, in place, from
    the model in the file. Raise ValueError if that is not possible, and FileNotFoundError if the
    file is missing."""
    model = read_model(file)
    inputs = tensors(model.inputs, config["input"])
    outputs = tensors(model.outputs, config["output"])
    specs.complete(config, inputs, outputs)


def compile_model(model: Any, settings: OpenvinoSettings, args: Mapping[str, str]) -> Any:
    """Compile the model or load it from the cache, and log which of the two happened. `args` is
    what Triton passes to initialize. Raise ValueError if OpenVINO cannot compile the model."""
    warnings = list(settings.warnings)
    core = openvino.Core()
    capabilities = core.get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")
    if settings.lacks_precision(capabilities):
        warnings.append(f"{DEVICE} has no instructions for {settings.precision}, so f32 is used")
    properties = settings.properties(capabilities)
    started = time.monotonic()
    try:
        with openvino_settings.locked_cache(args["model_name"], args["model_version"]) as folder:
            cached = properties | {"CACHE_DIR": str(folder)}
            compiled = core.compile_model(model, DEVICE, cached)
    except (OSError, RuntimeError) as err:
        warnings.append(f"compiled without a cache: {plain(err)}")
        try:
            compiled = core.compile_model(model, DEVICE, properties)
        except RuntimeError as error:
            raise ValueError(
                f"OpenVINO cannot compile the model for {DEVICE}: {plain(error)}"
            ) from error
    instance = args["model_instance_name"]
    for warning in warnings:
        pb_utils.Logger.log_warn(f"{instance}: {warning}")
    seconds = time.monotonic() - started
    pb_utils.Logger.log_info(f"{instance}: {_description(compiled)} in {seconds:.2f} s")
    return compiled


def _description(compiled: Any) -> str:
    """Return how the model was compiled, for the log."""
    get = compiled.get_property
    version = openvino.__version__.partition("-")[0]
    precision = get("INFERENCE_PRECISION_HINT").get_type_name()
    threads = f"{get('INFERENCE_NUM_THREADS')} threads in {get('NUM_STREAMS')} streams"
    origin = "taken from the cache" if get("LOADED_FROM_CACHE") else "compiled"
    return f"OpenVINO {version} on {DEVICE}, {precision}, {threads}, {origin}"


class Runs:
    """Runs merged calls in parallel on several streams, each of which has its share of the
    threads."""

    def __init__(self, compiled: Any, merge: Merge) -> None:
        self.compiled = compiled
        self.merge = merge
        self.streams = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        self.idle: SimpleQueue[Any] = SimpleQueue()
        for _ in range(self.streams):
            self.idle.put(compiled.create_infer_request())
        self.pool = ThreadPoolExecutor(self.streams)

    def run(self, calls: Calls) -> list[Arrays]:
        """Return the outputs of each call, in the order of the calls."""
        run: Callable[[Calls], list[Arrays]] = partial(run_merged, self._run_model, self.merge)
        size = math.ceil(len(calls) / self.streams)
        if size == len(calls):  # one stream, or one call
            return run(calls)
        parts = [calls[start : start + size] for start in range(0, len(calls), size)]
        return list(chain.from_iterable(self.pool.map(run, parts)))

    def _run_model(self, feed: Arrays, names: Sequence[str]) -> Arrays:
        """Run the model once on these inputs. Return the outputs with these names. Raise
        InvalidInput if the shapes of the inputs are wrong, and RuntimeError if the run fails
        otherwise."""
        values = {index_of(name, self.compiled.inputs): array for name, array in feed.items()}
        request = self.idle.get()  # never waits, because there is one for each thread of the pool
        try:
            request.start_async(values, share_inputs=True)
            request.wait()
            results = request.results
        except RuntimeError as err:
            error_class = InvalidInput if WRONG_SHAPE.search(str(err)) else RuntimeError
            raise error_class(f"OpenVINO: {plain(err)}") from err
        finally:
            self.idle.put(request)
        return {name: results[index_of(name, self.compiled.outputs)] for name in names}


def rows_of_tables(model: Any) -> dict[str, int]:
    """Return {input: number of rows} for the inputs that contain indices into the rows of a table,
    such as an embedding. OpenVINO would read zeros for an index past the last row."""
    rows: dict[str, int] = {}
    for port in model.inputs:
        sizes = _table_sizes(port)
        if sizes:
            rows |= dict.fromkeys(port.names, min(sizes))
    return rows


def _table_sizes(values: Any) -> list[int]:
    """Return the numbers of rows of the tables into which `values`, an output in the graph, are
    indices. Unknown numbers are left out."""
    sizes = []
    for target in values.get_target_inputs():
        node = target.get_node()
        operator = node.get_type_name()
        index = target.get_index()
        if operator in SAME_VALUES and index == 0:
            sizes += _table_sizes(node.output(0))
        elif operator == "Gather" and index == 1:  # Gather(table, indices, axis)
            table = node.input_value(0).get_partial_shape()
            axis = node.input_value(2).get_node()
            if axis.get_type_name() == "Constant" and table.is_static:
                dimension = int(axis.get_data().item())
                sizes.append(table.get_shape()[dimension])
    return sizes


def check_range(name: str, array: Any, rows: int | None) -> None:
    """Raise InvalidInput for integers that do not fit into the 32 bits in which OpenVINO computes,
    and for indices outside a table with `rows` rows. An index of -1 means the last row."""
    low, high = INT32.min, INT32.max
    reason = "because OpenVINO computes with 32 bits"
    if rows is not None:
        low, high = -rows, rows - 1
        reason = f"because it is an index of a table with {rows} rows in the model"
    elif array.dtype.str[1:] not in MAY_EXCEED_INT32:
        return
    # an empty array has no minimum, so 0 counts too
    for number in (array.min(initial=0), array.max(initial=0)):
        if not low <= number <= high:
            raise InvalidInput(f"input '{name}' has {number}; it must be {low} to {high}, {reason}")
