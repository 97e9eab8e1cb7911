"""What an ONNX file says of itself: versions, tensors, other files. Its weights are passed over, and never in memory.

The serving image has no package onnx, and protobuf's own reader would copy all weights. A message of protobuf is a row
of fields, each a number, a kind and a value (protobuf.dev/programming-guides/encoding); the numbers below are those of
onnx.proto (onnx/onnx, onnx/onnx.proto).
"""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # kinds
IR_VERSION, GRAPH, OPSETS = 1, 7, 8  # of a ModelProto
DOMAIN, VERSION = 1, 2  # of an OperatorSetIdProto
INITIALIZER, INPUT, OUTPUT = 5, 11, 12  # of a GraphProto
NAME, TYPE = 1, 2  # of a ValueInfoProto
TENSOR, ELEMENT, SHAPE, DIMENSION, SIZE = 1, 1, 2, 1, 1  # of a TypeProto and below
WEIGHTS_NAME, EXTERNAL, LOCATION = 8, 13, 14  # of a TensorProto; a LOCATION of 1 is another file
KINDS = {4: "sequence", 5: "map", 8: "sparse tensor", 9: "optional"}  # of a TypeProto that is no tensor
_FIRST = ("FP32", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "BYTES", "BOOL", "FP16", "FP64")
_NAMES = (*_FIRST, "UINT32", "UINT64")
DATATYPES = {**dict(enumerate(_NAMES, start=1)), 16: "BF16"}  # of TensorProto.DataType, as Triton names them

Field = tuple[int, int, int]  # number; a varint and 0, or the begin and the end of bytes


class Damaged(ValueError):
    """No ONNX file, or a part of one."""


@dataclass(frozen=True)
class Port:
    """An input or output: `datatype` as Triton names it, or another kind of value; `shape` with -1 for a variable
    dimension, None where the file does not say."""

    name: str
    datatype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Header:
    """`optional` are inputs that have a value in the file, `external` the other files that hold weights, with the bytes
    that they must have."""

    ir_version: int
    opsets: Mapping[str, int]
    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    optional: Mapping[str, Port]
    external: Mapping[str, int]


def read_header(file: Path) -> Header:
    """Raises Damaged or OSError."""
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).header()
    except Damaged:
        raise
    except ValueError as err:  # an empty file, or words where numbers must be
        raise Damaged(f"it is no ONNX file: {err}") from err


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data

    def header(self) -> Header:
        fields = list(self.fields(0, len(self.data)))
        graphs = [(begin, end) for number, begin, end in fields if number == GRAPH]
        if len(graphs) != 1:
            raise Damaged("it has no graph")
        graph = list(self.fields(*graphs[0]))
        weights = [self.weights(begin, end) for number, begin, end in graph if number == INITIALIZER]
        inputs, outputs = ({port.name: port for port in self.ports(graph, way)} for way in (INPUT, OUTPUT))
        named = {name for name, _, _ in weights}
        external: dict[str, int] = {}
        for _, location, size in weights:
            if location:
                external[location] = max(size, external.get(location, 0))
        return Header(
            ir_version=next((value for number, value, _ in fields if number == IR_VERSION), 0),
            opsets=dict(self.opset(begin, end) for number, begin, end in fields if number == OPSETS),
            inputs={name: port for name, port in inputs.items() if name not in named},
            outputs=outputs,
            optional={name: port for name, port in inputs.items() if name in named},
            external=external,
        )

    def fields(self, begin: int, end: int) -> Iterator[Field]:
        """Of the message that lies there; raises Damaged where one goes beyond it."""
        while begin < end:
            key, begin = self.varint(begin, end)
            kind = key & 7
            value, stop = begin, begin
            if kind == VARINT:
                value, begin = self.varint(begin, end)
                stop = 0
            elif kind == BYTES:
                size, value = self.varint(begin, end)
                begin = stop = value + size
            elif kind in (FIXED32, FIXED64):
                begin = stop = begin + (4 if kind == FIXED32 else 8)
            else:
                raise Damaged("it is no ONNX file")
            if begin > end:
                raise Damaged(f"it is cut short, or no ONNX file: {begin - end} bytes are missing")
            yield key >> 3, value, stop

    def varint(self, begin: int, end: int) -> tuple[int, int]:
        """(the number, where it ends)."""
        value = 0
        for place in range(begin, min(begin + 10, end)):
            byte = self.data[place]
            value |= (byte & 127) << 7 * (place - begin)
            if byte < 128:
                return value, place + 1
        raise Damaged("it is cut short, or no ONNX file")

    def text(self, begin: int, end: int) -> str:
        return self.data[begin:end].decode("utf-8", "replace")

    def opset(self, begin: int, end: int) -> tuple[str, int]:
        domain, version = "", 0
        for number, value, stop in self.fields(begin, end):
            domain = self.text(value, stop) if number == DOMAIN else domain
            version = value if number == VERSION else version
        return domain, version

    def weights(self, begin: int, end: int) -> tuple[str, str, int]:
        """(name, the other file that has them, how many bytes that has at least)."""
        name, entries, elsewhere = "", {}, False
        for number, value, stop in self.fields(begin, end):
            name = self.text(value, stop) if number == WEIGHTS_NAME else name
            elsewhere = value == 1 if number == LOCATION else elsewhere
            if number == EXTERNAL:
                key, text = (self.text(each, last) for _, each, last in self.fields(value, stop))
                entries[key] = text
        size = sum(int(entries.get(key, 0)) for key in ("offset", "length"))
        return name, entries.get("location", "") if elsewhere else "", size

    def ports(self, graph: list[Field], way: int) -> Iterator[Port]:
        for number, begin, end in graph:
            if number == way:
                parts = {number: (value, stop) for number, value, stop in self.fields(begin, end)}
                name = self.text(*parts[NAME]) if NAME in parts else ""
                yield Port(name, *(self.type(*parts[TYPE]) if TYPE in parts else ("nothing", None)))

    def type(self, begin: int, end: int) -> tuple[str, tuple[int, ...] | None]:
        for number, value, stop in self.fields(begin, end):
            if number == TENSOR:
                parts = {number: (value, stop) for number, value, stop in self.fields(value, stop)}
                element = parts.get(ELEMENT, (0, 0))[0]
                shape = tuple(self.sizes(*parts[SHAPE])) if SHAPE in parts else None
                return DATATYPES.get(element, f"ONNX type {element}"), shape
            return KINDS.get(number, "nothing"), None
        return "nothing", None

    def sizes(self, begin: int, end: int) -> Iterator[int]:
        for number, value, stop in self.fields(begin, end):
            if number == DIMENSION:
                given = [size for number, size, _ in self.fields(value, stop) if number == SIZE]
                yield given[0] if given and 0 < given[0] < 2**63 else -1
