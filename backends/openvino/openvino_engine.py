"""A model in OpenVINO: read, fitted to config.pbtxt, compiled or taken from the cache, and run. Needs OpenVINO.

Runs are started and waited for. OpenVINO 2026.4's synchronous `infer` with one thread loses the error of shapes that do
not fit: it returns the outputs of the request before, which were another caller's, and sometimes the process dies
(SIGSEGV).
"""

import math
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import openvino
import openvino_settings  # type: ignore[import-not-found]  # Triton's stub puts this folder on its path
import tensors as table  # type: ignore[import-not-found]
from batching import Arrays, Call, InvalidInput, run_concatenated  # type: ignore[import-not-found]
from openvino.preprocess import PrePostProcessor
from openvino_settings import CAPABILITIES, OpenvinoSettings

Config = dict[str, Any]

DEFAULT_FILE = "model.xml"
DATATYPES = {
    f"{sign}{bits}": f"TYPE_{word}{bits}" for sign, word in (("i", "INT"), ("u", "UINT")) for bits in (8, 16, 32, 64)
}
DATATYPES |= {"boolean": "TYPE_BOOL", "f16": "TYPE_FP16", "f32": "TYPE_FP32", "f64": "TYPE_FP64"}
KINDS = {datatype: kind for kind, datatype in DATATYPES.items()}
CONVERTED = {*DATATYPES, "bf16"}  # between these datatypes the compiled model converts
VIRTUAL = ("AUTO", "MULTI", "HETERO", "BATCH")  # OpenVINO's devices that choose among others
WRONG_SHAPE = re.compile("shape_inference/|ParameterMismatch")  # in OpenVINO's errors: of the request, not of the model
WIDE = ("i8", "u8", "u4")  # NumPy's: wider than the 32 bits, with a sign, that OpenVINO computes integers with
INT32 = np.iinfo(np.int32)


def read(file: Path, settings: OpenvinoSettings) -> Any:
    """The model in the file; ValueError or FileNotFoundError says what is wrong with it."""
    if not file.exists():
        other = file.with_name("model.onnx")
        remedy = '; say default_model_filename: "model.onnx"' if other.is_file() else ""
        raise FileNotFoundError(f"unable to find '{file}'{remedy}")
    core = openvino.Core()
    if settings.extension:
        try:
            core.add_extension(settings.extension)
        except RuntimeError as err:
            raise ValueError(f"parameter 'CPU_EXTENSION_PATH': {plain(err)}") from err
    try:
        return core.read_model(str(file))
    except RuntimeError as err:
        raise ValueError(f"OpenVINO cannot read '{file}': {plain(err)}") from err


def plain(error: Exception) -> str:
    """What OpenVINO says was wrong, without the places in its source."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("Exception from ", "Check '"))]
    return " ".join(said) or " ".join(lines)


def fit(model: Any, config: Config, settings: OpenvinoSettings) -> None:
    """Gives the model, in place, the shapes and the datatypes that config.pbtxt asks for; ValueError when it cannot."""
    shapes = {port.get_any_name(): _shape(port, config, settings) for port in model.inputs}
    current = {port.get_any_name(): _known_shape(port) for port in model.inputs}
    if shapes != current:
        try:
            model.reshape({name: openvino.PartialShape(list(shape)) for name, shape in shapes.items()})
        except RuntimeError as err:
            raise ValueError(
                f"model '{config['name']}' cannot take the shapes {shapes}: {plain(err)}; set max_batch_size 0 or "
                "export the model with dynamic dimensions"
            ) from err


def _shape(port: Any, config: Config, settings: OpenvinoSettings) -> tuple[int, ...]:
    """The input's, of the file or, with RESHAPE_IO_LAYERS, of config.pbtxt; the first dimension is the batch's."""
    entry = next((each for each in config["input"] if each["name"] in port.names), None)
    batch = [config["max_batch_size"] if settings.fixed_batch else -1] if config["max_batch_size"] else []
    if entry and (settings.reshape or port.partial_shape.rank.is_dynamic):
        return table.configured_shape(entry, config["max_batch_size"], *batch)  # type: ignore[no-any-return]
    found = _known_shape(port)
    if batch and not found:
        raise ValueError(f"input '{port.get_any_name()}' has no dimension for batches: set max_batch_size 0")
    return (*batch, *found[len(batch) :])


def _known_shape(port: Any) -> tuple[int, ...]:
    """-1 for a variable dimension; ValueError when not even their number is known."""
    shape = port.partial_shape
    if shape.rank.is_dynamic:
        raise ValueError(
            f"tensor '{port.get_any_name()}' has any number of dimensions: list the tensors in config.pbtxt"
        )
    return tuple(-1 if size.is_dynamic else size.get_length() for size in shape)


def convert(model: Any, config: Config) -> Any:
    """The model with the datatypes of config.pbtxt at its inputs and outputs, as in NVIDIA's backend."""
    processor = PrePostProcessor(model)
    for side, ports, place in (("input", model.inputs, processor.input), ("output", model.outputs, processor.output)):
        for index, entry in ((index_of(each["name"], ports), each) for each in config[side]):
            wanted = KINDS.get(entry["data_type"])
            if index is not None and wanted and kind(ports[index]) in CONVERTED:
                place(index).tensor().set_element_type(getattr(openvino.Type, wanted))
    return processor.build()


def index_of(name: str, ports: Sequence[Any]) -> int | None:
    """The tensor that has it among its names."""
    return next((index for index, port in enumerate(ports) if name in port.names), None)


def kind(port: Any) -> str:
    """OpenVINO's word for the datatype."""
    return str(port.element_type.get_type_name())


def tensors(ports: Sequence[Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The inputs or outputs by the one of their names that config.pbtxt knows, else by OpenVINO's first."""
    known = {entry["name"] for entry in entries}
    names = {min(port.names & known, default=port.get_any_name()): port for port in ports}
    return {name: table.Tensor(name, kind(port), _known_shape(port), DATATYPES) for name, port in names.items()}


def fitted(file: Path, config: Config, settings: OpenvinoSettings) -> tuple[Any, set[str]]:
    """(the model as config.pbtxt asks for it, its inputs that are scalars); ValueError when the two disagree."""
    model = read(file, settings)
    fit(model, config, settings)
    model = convert(model, config)
    inputs, outputs = tensors(model.inputs, config["input"]), tensors(model.outputs, config["output"])
    for tensor in (*inputs.values(), *outputs.values()):
        tensor.datatype  # noqa: B018  # ValueError for strings
    table.check(config, inputs, outputs, batch=config["max_batch_size"] if settings.fixed_batch else -1)
    return model, {name for name, tensor in inputs.items() if not tensor.shape}


def complete(config: Config, file: Path) -> None:
    """Fills inputs, outputs and max_batch_size in place; ValueError when the model does not allow it."""
    settings = replace(OpenvinoSettings.from_config(config), fixed_batch=False)
    model = read(file, settings)
    fit(model, config, settings)
    table.complete(config, tensors(model.inputs, config["input"]), tensors(model.outputs, config["output"]))


class Compiled:
    """A compiled model, and in words how it came to be; ValueError when the device cannot take it."""

    def __init__(self, model: Any, settings: OpenvinoSettings, name: str, version: str) -> None:
        self.core, self.device, self.warnings = openvino.Core(), settings.device, [*settings.warnings]
        if settings.extension:
            self.core.add_extension(settings.extension)
        capabilities = self._capabilities()
        if settings.lacks(capabilities):
            self.warnings.append(f"{self.device} has no instructions for {settings.precision}, so f32 is used")
        started = time.monotonic()
        self.model = self._compile(model, settings.properties(capabilities), name, version)
        self.seconds = time.monotonic() - started

    def describe(self) -> str:
        """For the log."""
        get = self.model.get_property
        said = [f"OpenVINO {openvino.__version__.partition('-')[0]} on {self.device}"]
        if self.device == "CPU":
            said.append(get("INFERENCE_PRECISION_HINT").get_type_name())
            said.append(f"{get('INFERENCE_NUM_THREADS')} threads in {get('NUM_STREAMS')} streams")
        made = "taken from the cache" if get("LOADED_FROM_CACHE") else "compiled"
        return ", ".join([*said, f"{made} in {self.seconds:.2f} s"])

    def _capabilities(self) -> list[str]:
        """Of the device; ValueError names those that are there."""
        asked = self.device.partition(":")[0].partition(".")[0]
        if asked in VIRTUAL:
            return list(CAPABILITIES.values())
        there = [device.partition(".")[0] for device in self.core.available_devices] if asked != "CPU" else ["CPU"]
        if asked not in there:
            raise ValueError(
                f"parameter 'TARGET_DEVICE': there is no device '{self.device}', only {', '.join(there)}; "
                "leave the parameter out for the processor"
            )
        return list(self.core.get_property(self.device, "OPTIMIZATION_CAPABILITIES"))

    def _compile(self, model: Any, properties: dict[str, Any], name: str, version: str) -> Any:
        try:
            with openvino_settings.opened(name, version) as folder:
                return self.core.compile_model(model, self.device, properties | {"CACHE_DIR": str(folder)})
        except (OSError, RuntimeError) as err:
            self.warnings.append(f"compiled without a cache: {plain(err)}")
        try:
            return self.core.compile_model(model, self.device, properties)
        except RuntimeError as err:
            raise ValueError(f"OpenVINO cannot compile the model for {self.device}: {plain(err)}") from err


class Runs:
    """Several streams run at the same time, each on its part of the threads; merged calls are shared out to them."""

    def __init__(self, compiled: Any, rows: int, settings: OpenvinoSettings) -> None:
        """`rows`: of every run, where SKIP_OV_DYNAMIC_BATCHSIZE fixed them; else 0."""
        self.compiled, self.rows, self.padding = compiled, rows, settings.padding
        self.streams = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        self.idle: SimpleQueue[Any] = SimpleQueue()
        for _ in range(self.streams):
            self.idle.put(compiled.create_infer_request())
        self.pool = ThreadPoolExecutor(self.streams) if self.streams > 1 else None

    def run(self, calls: Sequence[Call]) -> list[Arrays]:
        """The outputs of each call, in order."""
        size = math.ceil(len(calls) / self.streams)
        parts = [calls[start : start + size] for start in range(0, len(calls), size)]
        found = self.pool.map(self._part, parts) if self.pool and len(parts) > 1 else map(self._part, parts)
        return [answer for answers in found for answer in answers]

    def close(self) -> None:
        """Frees the model's memory."""
        if self.pool:
            self.pool.shutdown()
        del self.idle, self.compiled

    def _part(self, calls: Sequence[Call]) -> list[Arrays]:
        found: list[Arrays] = run_concatenated(self._run, calls)
        return found

    def _run(self, feed: Arrays, names: Sequence[str]) -> Arrays:
        count = len(next(iter(feed.values()))) if self.rows else 0
        values = {index_of(name, self.compiled.inputs): self._padded(array) for name, array in feed.items()}
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
        arrays = {name: results[index_of(name, self.compiled.outputs)] for name in names}
        return {name: array[:count] for name, array in arrays.items()} if self.rows else arrays

    def _padded(self, array: Any) -> Any:
        """With rows of zeros up to the model's fixed number; InvalidInput where ENABLE_BATCH_PADDING is not set."""
        if not self.rows or len(array) == self.rows:
            return array
        if not self.padding:
            raise InvalidInput(
                f"this model takes {self.rows} rows at once (SKIP_OV_DYNAMIC_BATCHSIZE) and got {len(array)}: send "
                f"{self.rows}, or set its parameter ENABLE_BATCH_PADDING to YES"
            )
        return np.concatenate([array, np.zeros((self.rows - len(array), *array.shape[1:]), array.dtype)])


def check_range(name: str, array: Any) -> None:
    """InvalidInput for integers that OpenVINO would compute with as others."""
    if array.dtype.str[1:] in WIDE and array.size and not INT32.min <= array.min() <= array.max() <= INT32.max:
        raise InvalidInput(
            f"input '{name}' has integers outside {INT32.min} to {INT32.max}: OpenVINO computes with 32 bits"
        )
