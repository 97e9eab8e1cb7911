"""Rows 2, 3 and 5 of CONTRACT section 3: every datatype with the model `identity`, and strings with
the ensemble `chain`."""

import numpy as np

from tests.conformance.behaviours import BINARY, Ask, Row, binary, post, tensor
from tests.support.harness import IDENTITY_VALUES

MISTAKE = "400, as the caller can mend it; native says 500"
HALVES = "numbers, as of every other datatype; native refuses FP16 in JSON"
DTYPES = {"FP16": "f2", "FP32": "f4", "FP64": "f8", "BOOL": "?"}


def _raw(name: str) -> bytes:
    if name == "BYTES":
        texts = [str(value).encode() for value in IDENTITY_VALUES[name]]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    return np.array(IDENTITY_VALUES[name], dtype=DTYPES.get(name, name.lower())).tobytes()


RAW = {name: _raw(name) for name in IDENTITY_VALUES}


def _asked(name: str, as_json: bool, answer_binary: bool) -> Ask:
    """Send all inputs except this one as bytes, and request only the output for this one."""
    inputs, blobs = [], b""
    for other, values in IDENTITY_VALUES.items():
        if other == name and as_json:
            inputs.append(tensor(f"in_{other}", other, [1, 2], values))
        else:
            inputs.append(tensor(f"in_{other}", other, [1, 2], binary_data_size=len(RAW[other])))
            blobs += RAW[other]
    outputs = [{"name": f"out_{name}", "parameters": {"binary_data": answer_binary}}]
    return binary({"inputs": inputs, "outputs": outputs}, blobs)


def _with(name: str, values: list[object]) -> Ask:
    inputs = [
        tensor(f"in_{other}", other, [1, 2], values if other == name else default)
        for other, default in IDENTITY_VALUES.items()
        if other != "FP16"
    ]
    half = tensor("in_FP16", "FP16", [1, 2], binary_data_size=4)
    return binary({"inputs": [*inputs, half], "outputs": [{"name": f"out_{name}"}]}, RAW["FP16"])


def _reason(name: str) -> str:
    return HALVES if name == "FP16" else ""


ROWS = [
    *(
        Row("2", f"{name} as JSON", _asked(name, True, False), _reason(name))
        for name in IDENTITY_VALUES
    ),
    *(Row("3", f"{name} as bytes", _asked(name, False, True)) for name in IDENTITY_VALUES),
    Row(
        "3",
        "Two outputs as bytes, one as JSON",
        binary(
            {
                "inputs": [
                    tensor(f"in_{n}", n, [1, 2], binary_data_size=len(RAW[n]))
                    for n in IDENTITY_VALUES
                ],
                "outputs": [
                    {"name": "out_BYTES", "parameters": {"binary_data": True}},
                    {"name": "out_INT8"},
                    {"name": "out_FP32", "parameters": {"binary_data": True}},
                ],
            },
            b"".join(RAW[n] for n in IDENTITY_VALUES),
        ),
    ),
    Row(
        "5",
        "A number too large for INT8",
        _with("INT8", [1, 300]),
        "400; native takes another number, 44",
    ),
    Row("5", "A negative number for UINT8", _with("UINT8", [1, -1]), MISTAKE),
    Row("5", "A fraction for INT32", _with("INT32", [1.5, 2]), MISTAKE),
    Row("5", "A number for BOOL", _with("BOOL", [1, 0]), MISTAKE),
    Row("5", "A number for BYTES", _with("BYTES", [1, "a"]), MISTAKE),
    Row("5", "An integer for FP64", _with("FP64", [1, 2])),
    Row(
        "3",
        "N=0 of a model with many inputs",
        post(b"1234", {"Content-Type": f"{BINARY};json-header-size=0"}),
    ),
]


def say(text: str) -> Ask:
    return post({"inputs": [tensor("text_input", "BYTES", [1], [text])]})


TEXT = {"inputs": [tensor("text_input", "BYTES", [1], binary_data_size=5)]}
ENSEMBLE_ROWS = [
    Row("2", "A text goes through both parts", say('Grüße, "quoted" \\ \u0001')),
    Row("5", "A part fails", say("fail with these words")),
    Row("5", "A part raises", say("raise these words")),
    Row(
        "5",
        "A wrong shape for a part",
        post({"inputs": [tensor("text_input", "BYTES", [2], ["a", "b"])]}),
    ),
    Row("3", "A text as bytes", binary(TEXT, b"\1\0\0\0a")),
    Row("3", "A text's length past its bytes", binary(TEXT, b"\xff\0\0\0a")),
    Row("3", "N=0 of a text", post(b"\1\0\0\0a", {"Content-Type": f"{BINARY};json-header-size=0"})),
]
