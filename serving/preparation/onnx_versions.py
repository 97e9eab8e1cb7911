"""What ONNX Runtime here says of a file: of its versions, where they are not old, and of the whole."""

import re
from collections.abc import Mapping
from pathlib import Path

from serving.repository.onnx_header import DOMAIN, GRAPH, IR_VERSION, NAME, OPSETS, VERSION, Damaged, read_header

SURE_IR = 10  # ONNX Runtime 1.18 and newer take these
SURE = {"": 21, "ai.onnx": 21, "ai.onnx.ml": 4}
REFUSED = {  # ONNX Runtime's words for what is asked and what it takes
    "its IR version is": re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)"),
    "its opset is": re.compile(r"Opset (\d+) is under development.*for domain \S+ is till opset (\d+)", re.DOTALL),
}


def too_new(file: Path) -> str:
    """What is newer than ONNX Runtime here; "" where nothing is, or the file cannot be read."""
    try:
        header = read_header(file)
    except (Damaged, OSError):
        return ""
    if header.ir_version <= SURE_IR and all(n <= SURE.get(name, n) for name, n in header.opsets.items()):
        return ""
    return asked(header.ir_version, header.opsets)


def asked(ir_version: int, opsets: Mapping[str, int]) -> str:
    """What ONNX Runtime says of a model with nothing in it but these versions."""
    said = _said(_empty(ir_version, opsets))
    refusals = ((what, pattern.search(said)) for what, pattern in REFUSED.items())
    return next(
        (f"{what} {found[1]}, and ONNX Runtime here takes {found[2]} at most" for what, found in refusals if found), ""
    )


def refusal(file: Path) -> str:
    """Why ONNX Runtime cannot load it; "" where it can. Takes the weights into memory."""
    said = _said(str(file))
    return f"ONNX Runtime cannot load it: {said.rpartition(' failed:')[2] or said}" if said else ""


def _said(model: str | bytes) -> str:
    """Why it makes no session of a file or of a model's bytes."""
    import onnxruntime  # takes a second where it is not in memory

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # it logs what it raises
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as err:  # its exceptions have no base of their own
        return str(err)
    return ""


def _empty(ir_version: int, opsets: Mapping[str, int]) -> bytes:
    """A ModelProto."""
    domains = (_text(DOMAIN, name.encode()) + _number(VERSION, version) for name, version in opsets.items())
    listed = b"".join(_text(OPSETS, each) for each in domains)
    return _number(IR_VERSION, ir_version) + listed + _text(GRAPH, _text(NAME + 1, b"empty"))


def _text(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    low, high = value & 127, value >> 7
    return bytes([low | 128]) + _varint(high) if high else bytes([low])
