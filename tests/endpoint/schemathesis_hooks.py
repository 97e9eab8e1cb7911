"""What schemathesis has to know besides the schema to make requests that are right (SCHEMATHESIS_HOOKS): pictures, and
which model takes what.

Those that it makes wrong on purpose stay as they are.
"""

from __future__ import annotations  # Case has no index at run time

import base64
import io
from typing import Any

import numpy as np
import orjson
import schemathesis
from hypothesis import strategies
from PIL import Image
from schemathesis import Case, GenerationMode, HookContext
from schemathesis.core.parameters import ParameterLocation

INPUTS = ("input_ids", "attention_mask", "token_type_ids")  # of bert
JSON, FORM, NPY = "application/json", "multipart/form-data", "application/x-npy"
BINARY, OCTETS = "application/vnd.sagemaker-triton.binary+json", "application/octet-stream"
LINES = ("application/jsonlines", "application/x-jsonlines", "application/x-ndjson")
LENGTH = "Inference-Header-Content-Length"
SIZES = ((8, 8), (64, 48), (300, 200))


def png(size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, "white").save(file, "PNG")
    return file.getvalue()


def npy() -> bytes:
    """Of resnet's only input."""
    file = io.BytesIO()
    np.save(file, np.zeros((1, 3, 64, 64), np.uint8))
    return file.getvalue()


def binary(outputs: bool = False) -> tuple[int, bytes]:
    """bert's tensors, and how long their header is; `outputs` are binary too."""
    inputs = [{**one(name), "parameters": {"binary_data_size": 8}} for name in INPUTS]
    for each in inputs:
        del each["data"]
    header = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": outputs}})
    return len(header), header + bytes(8 * len(inputs))


def one(name: str) -> dict[str, Any]:
    return {"name": name, "datatype": "INT64", "shape": [1, 1], "data": [0]}


PICTURES = [png(size) for size in SIZES]
KINDS = [f"image/{name}" for name in ("jpeg", "webp", "gif", "bmp", "tiff")]  # what it is, the file itself says
OTHERS = [OCTETS, "application/x-image"]
schemathesis.openapi.media_type("image/png", strategies.sampled_from(PICTURES), aliases=[*KINDS, *OTHERS])
schemathesis.openapi.format(
    "image-base64", strategies.sampled_from([base64.b64encode(picture).decode() for picture in PICTURES])
)
schemathesis.openapi.media_type(NPY, strategies.just(npy()))
schemathesis.openapi.media_type(BINARY, strategies.just(binary()[1]))


@schemathesis.serializer(*LINES)
def lines(context: Any, value: Any) -> Any:
    """What is no text has no line: a wrong line is answered by a line, and is no error of the request."""
    return value.encode() if isinstance(value, str) else b""


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    if case.meta is None:
        return
    query = case.meta.components.get(ParameterLocation.QUERY)
    if case.path == "/invocations" and case.media_type in (JSON, FORM) and (query is None or is_right(query)):
        case.query = {}  # such a body names its own model, or none
    if all(map(is_right, (case.meta.generation, *case.meta.components.values()))):
        complete(case)


def complete(case: Case[Any]) -> None:
    if case.path == "/invocations":
        invocation(case)
    elif case.path.endswith("/infer"):
        infer(case)
    elif "/generate" in case.path:
        case.body = {name: [0] for name in INPUTS}


def is_right(part: Any) -> bool:
    return bool(part.mode == GenerationMode.POSITIVE)


def invocation(case: Case[Any]) -> None:
    """A query string names the model of a raw body."""
    body: Any = case.body
    if case.media_type == JSON:
        if tensors(body.get("inputs")):
            case.body = {"model_name": "bert", "inputs": [one(name) for name in INPUTS]}
    elif case.media_type == FORM:
        case.body = {name: value for name, value in body.items() if name != "classes"} | {"image": PICTURES[:1]}
    else:
        texts = case.media_type in ("text/plain", BINARY, *LINES)
        case.query = {"model_name": "bert" if texts else "resnet"}
    if case.media_type in LINES:
        case.body = '"one"\n{"inputs": "two"}\n'
    if case.media_type == BINARY:
        case.headers["Content-Type"] = f"{BINARY};json-header-size={binary()[0]}"


def tensors(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) and "datatype" in each for each in value)


def infer(case: Case[Any]) -> None:
    case.headers.pop(LENGTH, None)
    body: Any = case.body
    if case.media_type == OCTETS:
        length, case.body = binary()
        case.headers[LENGTH] = str(length)
    else:
        body["inputs"] = [one(name) for name in INPUTS]
